"""The doctor: evidence of a cluster, judged layer by layer from the bottom up; findings are what it and others say."""
