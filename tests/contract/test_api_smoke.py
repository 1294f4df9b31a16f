from contract.engines import Api


def test_a(api: Api, core: str) -> None:
    api.create(f"{core}/configmaps", {"metadata": {"name": "a"}, "data": {"a": "b"}}).ok()
    api.get(f"{core}/configmaps/b").fails(404, "NotFound", '"b" not found')
    with api.watch(f"{core}/configmaps") as watch:
        assert watch.next()[0] == "ADDED"
