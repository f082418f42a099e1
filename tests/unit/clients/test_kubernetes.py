"""Requests as they go out to an API server, and what its answers become."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from kubernetes.aio import client
from tests.unit.clients.server import Answer, Asked, Server, refused, said, serving

from vllm_operator.clients.kubernetes import (
    ApiError,
    ConflictError,
    Kind,
    KubernetesClient,
    NotFoundError,
    kind_of,
)

POD = Kind(api_version="v1", kind="Pod")
RAY_CLUSTER = Kind(api_version="ray.io/v1", kind="RayCluster")
BODY = {
    "apiVersion": "ray.io/v1",
    "kind": "RayCluster",
    "metadata": {"name": "c", "namespace": "n"},
    "spec": {"a": None, "b": [1, {"c": "d"}]},
}


@asynccontextmanager
async def connected(answer: Answer) -> AsyncIterator[tuple[KubernetesClient, Server]]:
    async with serving(answer) as server:
        settings = client.Configuration()
        settings.host = server.url
        settings.api_key = {"BearerToken": "Bearer token"}
        api = KubernetesClient(client.ApiClient(settings))
        try:
            yield api, server
        finally:
            await api.close()


def ok(_: Asked) -> web.Response:
    return said(BODY)


@pytest.mark.parametrize(
    ("kind", "parts", "path"),
    [
        (POD, {"namespace": "n", "name": "p"}, "/api/v1/namespaces/n/pods/p"),
        (POD, {"namespace": "n"}, "/api/v1/namespaces/n/pods"),
        (POD, {}, "/api/v1/pods"),
        (Kind(api_version="v1", kind="Node"), {"name": "a.b"}, "/api/v1/nodes/a.b"),
        (RAY_CLUSTER, {"namespace": "n", "name": "c"}, "/apis/ray.io/v1/namespaces/n/rayclusters/c"),
        (
            Kind(api_version="vllm-operator.io/v1alpha1", kind="VLLMDeployment"),
            {"namespace": "n", "name": "d", "subresource": "status"},
            "/apis/vllm-operator.io/v1alpha1/namespaces/n/vllmdeployments/d/status",
        ),
        (
            Kind(api_version="coordination.k8s.io/v1", kind="Lease"),
            {"namespace": "n", "name": "l"},
            "/apis/coordination.k8s.io/v1/namespaces/n/leases/l",
        ),
        (POD, {"namespace": "n", "name": "a/b"}, "/api/v1/namespaces/n/pods/a%2Fb"),
    ],
)
def test_paths(kind: Kind, parts: dict[str, str], path: str) -> None:
    assert kind.path(**parts) == path


def test_kind_of_a_body() -> None:
    assert kind_of(BODY) == RAY_CLUSTER


async def test_get() -> None:
    async with connected(ok) as (api, server):
        assert await api.get(RAY_CLUSTER, "n", "c") == BODY
        [asked] = server.asked
        assert (asked.method, asked.path) == ("GET", "/apis/ray.io/v1/namespaces/n/rayclusters/c")
        assert asked.headers["Authorization"] == "Bearer token"
        assert asked.headers["Accept"] == "application/json"
        assert asked.query == {}


async def test_list_reads_every_page_with_its_selector() -> None:
    pages = {"": (["a", "b"], "next one"), "next one": (["c"], "")}

    def answer(asked: Asked) -> web.Response:
        names, token = pages[asked.query.get("continue", "")]
        items = [{"metadata": {"name": name}} for name in names]
        return said({"items": items, "metadata": {"continue": token}})

    async with connected(answer) as (api, server):
        found = await api.list(POD, "n", {"b.io/x": "2", "a": "1"})
        assert [item["metadata"]["name"] for item in found] == ["a", "b", "c"]
        assert [asked.query["labelSelector"] for asked in server.asked] == ["a=1,b.io/x=2"] * 2
        assert {asked.query["limit"] for asked in server.asked} == {"500"}
        assert server.asked[1].query["continue"] == "next one"


@pytest.mark.parametrize("answer", [{"items": None, "metadata": {}}, {"items": []}, {}])
async def test_empty_lists(answer: dict[str, Any]) -> None:
    async with connected(lambda _: said(answer)) as (api, server):
        assert await api.list(POD) == []
        assert "labelSelector" not in server.asked[0].query


async def test_list_that_grew_too_old_is_an_error_not_a_part() -> None:
    def answer(asked: Asked) -> web.Response:
        if asked.query.get("continue"):
            return refused(410, "The provided continue parameter is too old")
        return said({"items": [{}], "metadata": {"continue": "x"}})

    async with connected(answer) as (api, _):
        with pytest.raises(ApiError) as error:
            await api.list(POD)
        assert error.value.code == 410


async def test_create_posts_to_the_collection() -> None:
    async with connected(ok) as (api, server):
        assert await api.create(BODY) == BODY
        [asked] = server.asked
        assert (asked.method, asked.path) == ("POST", "/apis/ray.io/v1/namespaces/n/rayclusters")
        assert asked.body == BODY
        assert asked.headers["Content-Type"] == "application/json"


async def test_patch_is_a_merge_patch_guarded_by_uid_and_version() -> None:
    async with connected(ok) as (api, server):
        await api.patch(BODY, uid="u", resource_version="7")
        [asked] = server.asked
        assert (asked.method, asked.path) == ("PATCH", "/apis/ray.io/v1/namespaces/n/rayclusters/c")
        assert asked.headers["Content-Type"] == "application/merge-patch+json"
        assert asked.body["metadata"] == {"name": "c", "namespace": "n", "uid": "u", "resourceVersion": "7"}
        assert asked.body["spec"] == BODY["spec"]
        assert BODY["metadata"] == {"name": "c", "namespace": "n"}


@pytest.mark.parametrize(
    ("uid", "more"), [("", {}), ("u", {"preconditions": {"uid": "u"}})], ids=["any", "only this one"]
)
async def test_delete(uid: str, more: dict[str, Any]) -> None:
    async with connected(ok) as (api, server):
        await api.delete(POD, "n", "p", uid=uid)
        [asked] = server.asked
        assert (asked.method, asked.path) == ("DELETE", "/api/v1/namespaces/n/pods/p")
        assert asked.body == {"propagationPolicy": "Background", **more}


async def test_status_is_put_as_a_whole() -> None:
    async with connected(ok) as (api, server):
        await api.replace_status(BODY)
        [asked] = server.asked
        assert (asked.method, asked.path) == ("PUT", "/apis/ray.io/v1/namespaces/n/rayclusters/c/status")
        assert asked.body == BODY


async def test_what_is_gone() -> None:
    async with connected(lambda _: refused(404, 'pods "p" not found')) as (api, _):
        assert await api.find(POD, "n", "p") is None
        await api.delete(POD, "n", "p")
        with pytest.raises(NotFoundError, match='pods "p" not found'):
            await api.get(POD, "n", "p")
        with pytest.raises(NotFoundError):
            await api.list(RAY_CLUSTER, "n")
        with pytest.raises(NotFoundError):
            await api.replace_status(BODY)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(409, ConflictError), (404, NotFoundError), (403, ApiError), (422, ApiError), (429, ApiError), (500, ApiError)],
)
async def test_refusals_keep_code_and_words(status: int, kind: type[ApiError]) -> None:
    async with connected(lambda _: refused(status, "the server's words")) as (api, _):
        with pytest.raises(kind) as error:
            await api.create(BODY)
        assert type(error.value) is kind
        assert (error.value.code, error.value.message) == (status, "the server's words")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda _: web.Response(status=502, text="<html>bad gateway</html>"), "bad gateway"),
        (lambda _: web.Response(status=500), "GET /api/v1/namespaces/n/pods/p: HTTP 500"),
        (lambda _: said([], 503), "[]"),
        (lambda _: said({"message": ""}, 500), "HTTP 500"),
    ],
    ids=["a proxy", "nothing", "a list", "no words"],
)
async def test_answers_that_are_no_status_object(answer: Answer, words: str) -> None:
    async with connected(answer) as (api, _):
        with pytest.raises(ApiError) as error:
            await api.get(POD, "n", "p")
        assert words in error.value.message


async def test_no_answer() -> None:
    async with connected(ok) as (api, _):
        pass
    settings = client.Configuration()
    settings.host = "http://127.0.0.1:1"
    api = KubernetesClient(client.ApiClient(settings))
    try:
        with pytest.raises(ApiError) as error:
            await api.find(POD, "n", "p")
    finally:
        await api.close()
    assert error.value.code == 0
    assert "does not answer" in error.value.message


async def test_connect_by_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(ok) as server:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": server.url}}],
            "users": [{"name": "u", "user": {"token": "mine"}}],
        }
        (tmp_path / "config").write_text(yaml.safe_dump(config))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        api = await KubernetesClient.connect()
        try:
            await api.get(POD, "n", "p")
        finally:
            await api.close()
        assert server.asked[0].headers["Authorization"] == "Bearer mine"


async def test_connect_without_any_configuration_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    with pytest.raises(ApiError, match="KUBECONFIG"):
        await KubernetesClient.connect()


@pytest.mark.parametrize(
    ("context", "named", "namespace"),
    [
        ("", {}, "default"),
        ("", {"namespace": "models"}, "models"),
        ("other", {"namespace": "models"}, "prod"),
    ],
)
async def test_the_namespace_is_the_contexts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, context: str, named: dict[str, str], namespace: str
) -> None:
    contexts = [
        {"name": "c", "context": {"cluster": "k", **named}},
        {"name": "other", "context": {"cluster": "k", "namespace": "prod"}},
    ]
    clusters = [{"name": "k", "cluster": {"server": "http://127.0.0.1:1"}}]
    config = {"current-context": "c", "contexts": contexts, "clusters": clusters, "users": []}
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    api = await KubernetesClient.connect(kubeconfig=str(tmp_path / "config"), context=context)
    await api.close()
    assert api.namespace == namespace


@pytest.mark.parametrize(
    ("content", "context"),
    [
        ("", ""),
        ("a: [", ""),
        ("just words", ""),
        ("[1, 2]", ""),
        ("current-context: c", ""),
        ("{current-context: c, contexts: 3, clusters: 4}", ""),
        ("{current-context: c, contexts: [{name: c}], clusters: []}", ""),
        ("{current-context: c, contexts: [{name: c, context: {cluster: k}}], clusters: []}", "d"),
    ],
)
async def test_a_kubeconfig_that_cannot_be_used_is_named(tmp_path: Path, content: str, context: str) -> None:
    (tmp_path / "config").write_text(content)
    with pytest.raises(ApiError, match=f"kubeconfig {tmp_path}") as error:
        await KubernetesClient.connect(kubeconfig=str(tmp_path / "config"), context=context)
    assert error.value.code == 0
