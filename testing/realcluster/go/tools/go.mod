module groundplane.test/tools

go 1.26.0
