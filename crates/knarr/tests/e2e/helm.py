"""What Helm asks of a cluster, request by request: a release is installed with a hook, upgraded, tried without effect,
fails, is rolled back and uninstalled. Arguments: kubeconfig, namespace."""

import base64
import gzip
import json
import sys
import time
from urllib.parse import quote

from kubernetes import client, config

config.load_kube_config(sys.argv[1])
NAMESPACE = sys.argv[2]
HTTP = client.ApiClient()
LIMIT_SECONDS = 60
IMAGE = "localhost/knarr/busybox:1"
STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"

CORE = f"/api/v1/namespaces/{NAMESPACE}"
APPS = f"/apis/apps/v1/namespaces/{NAMESPACE}"
BATCH = f"/apis/batch/v1/namespaces/{NAMESPACE}"


def ask(method, path, body=None, content_type="application/json", accept="application/json", expect=(200, 201)):
    headers = {"Accept": accept, "User-Agent": "Helm/3.18.0"}
    data = None
    if body is not None:
        headers["Content-Type"] = content_type
        data = json.dumps(body)
    host = HTTP.configuration.host
    answer = HTTP.rest_client.pool_manager.request(method, host + path, body=data, headers=headers)
    assert answer.status in expect, f"{method} {path}: {answer.status} {answer.data[:500]}"
    return json.loads(answer.data)


def eventually(what, holds):
    until = time.monotonic() + LIMIT_SECONDS
    while not holds():
        assert time.monotonic() < until, f"{what}: not within {LIMIT_SECONDS} s"
        time.sleep(0.05)


# Discovery, as client-go has it: both documents at once, and what fields there are.
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
for root in ("/api", "/apis"):
    assert ask("GET", root, accept=AGGREGATED)["kind"] == "APIGroupDiscoveryList"
assert ask("GET", "/version")["major"] == "1"
assert "api/v1" in ask("GET", "/openapi/v3")["paths"]


class Releases:
    """Releases are kept in Secrets, one a revision."""

    path = f"{CORE}/secrets"

    def name(self, revision):
        return f"sh.helm.release.v1.demo.v{revision}"

    def secret(self, revision, status):
        release = {"name": "demo", "version": revision, "info": {"status": status}, "manifest": "# " + "x" * 20000}
        packed = base64.b64encode(gzip.compress(json.dumps(release).encode()))
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "helm.sh/release.v1",
            "metadata": {
                "name": self.name(revision),
                "labels": {"name": "demo", "owner": "helm", "status": status, "version": str(revision)},
            },
            "data": {"release": base64.b64encode(packed).decode()},
        }

    def create(self, revision, status):
        ask("POST", self.path, self.secret(revision, status), expect=(201,))

    def update(self, revision, status):
        # Without a resourceVersion: Helm writes what it knows.
        ask("PUT", f"{self.path}/{self.name(revision)}", self.secret(revision, status), expect=(200,))

    def list(self, selector="name=demo,owner=helm"):
        found = ask("GET", f"{self.path}?labelSelector={quote(selector)}")["items"]
        return {item["metadata"]["labels"]["version"]: item["metadata"]["labels"]["status"] for item in found}


releases = Releases()
OWNED = {
    "labels": {"app.kubernetes.io/managed-by": "Helm"},
    "annotations": {"meta.helm.sh/release-name": "demo", "meta.helm.sh/release-namespace": NAMESPACE},
}


def manifest(replicas, env, extra=None):
    """What the chart renders: path, name, object."""
    container = {
        "name": "web",
        "image": IMAGE,
        "command": ["sleep", "3600"],
        "env": env,
        "resources": {"requests": {"cpu": "10m"}},
    }
    objects = [
        (f"{CORE}/serviceaccounts", {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "demo", **OWNED}}),
        (
            f"{CORE}/services",
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": "demo", **OWNED},
                "spec": {"selector": {"app": "demo"}, "ports": [{"name": "http", "port": 80}]},
            },
        ),
        (
            f"{APPS}/deployments",
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": "demo", **OWNED},
                "spec": {
                    "replicas": replicas,
                    "selector": {"matchLabels": {"app": "demo"}},
                    "template": {
                        "metadata": {"labels": {"app": "demo"}},
                        "spec": {
                            "serviceAccountName": "demo",
                            "terminationGracePeriodSeconds": 1,
                            "containers": [container],
                        },
                    },
                },
            },
        ),
    ]
    if extra:
        objects.append((f"{CORE}/configmaps", extra))
    return {f"{path}/{obj['metadata']['name']}": (path, obj) for path, obj in objects}


def ready():
    deployment = ask("GET", f"{APPS}/deployments/demo")
    status, wanted = deployment["status"], deployment["spec"]["replicas"]
    seen = status.get("observedGeneration", 0) >= deployment["metadata"]["generation"]
    return seen and status.get("updatedReplicas") == wanted == status.get("readyReplicas") == status.get("replicas")


def two_way(old, new):
    """The merge patch that makes `new` of `old`."""
    patch = {}
    for key in old.keys() | new.keys():
        if key not in new:
            patch[key] = None
        elif isinstance(old.get(key), dict) and isinstance(new[key], dict):
            below = two_way(old[key], new[key])
            if below:
                patch[key] = below
        elif old.get(key) != new[key]:
            patch[key] = new[key]
    return patch


def apply(old, new, dry_run=False):
    """Helm's update: creates what is new, patches what there is, deletes what is no longer named."""
    query = "?fieldManager=helm" + ("&dryRun=All" if dry_run else "")
    shown = {}
    for path, (collection, target) in new.items():
        there = ask("GET", path, expect=(200, 404))
        if there.get("reason") == "NotFound":
            shown[path] = ask("POST", collection + query, target, expect=(201,))
            continue
        patch = two_way(old.get(path, (None, {}))[1], target)
        if patch:
            kind = target["kind"]
            shown[path] = ask("PATCH", path + query, patch, STRATEGIC if kind != "ConfigMap" else MERGE, expect=(200,))
    for path in old.keys() - new.keys():
        if not dry_run:
            ask("DELETE", path, {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"})
    return shown


# Install, with a hook that has to be done first.
assert releases.list() == {}
releases.create(1, "pending-install")
hook = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "demo-migrate", "annotations": {"helm.sh/hook": "pre-install", "helm.sh/hook-weight": "1"}},
    "spec": {
        "backoffLimit": 1,
        "template": {
            "spec": {
                "restartPolicy": "Never",
                "containers": [{"name": "migrate", "image": IMAGE, "command": ["true"]}],
            }
        },
    },
}
job = f"{BATCH}/jobs/demo-migrate"
ask("DELETE", job, {"propagationPolicy": "Background"}, expect=(404,))
ask("POST", f"{BATCH}/jobs?fieldManager=helm", hook, expect=(201,))


def complete():
    conditions = ask("GET", job).get("status", {}).get("conditions", [])
    return any(c["type"] == "Complete" and c["status"] == "True" for c in conditions)


eventually("the hook", complete)
ask("DELETE", job, {"propagationPolicy": "Background"})
eventually("the hook's end", lambda: ask("GET", job, expect=(200, 404)).get("reason") == "NotFound")

first = manifest(1, [{"name": "LEVEL", "value": "info"}])
assert len(apply({}, first)) == 3
eventually("the release", ready)
releases.update(1, "deployed")
assert releases.list() == {"1": "deployed"}
print("installed")

# Something else writes into the same objects meanwhile; a three-way patch leaves it alone.
ask("PATCH", f"{APPS}/deployments/demo", {"spec": {"template": {"metadata": {"labels": {"mesh": "on"}}}}}, MERGE)
notes = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "demo-notes", **OWNED},
    "data": {"a": "1"},
}
second = manifest(2, [{"name": "LEVEL", "value": "debug"}, {"name": "COLOUR", "value": "red"}], notes)
before = ask("GET", f"{APPS}/deployments/demo")["metadata"]["generation"]
tried = apply(first, second, dry_run=True)
assert tried[f"{APPS}/deployments/demo"]["spec"]["replicas"] == 2
assert tried[f"{CORE}/configmaps/demo-notes"]["metadata"]["uid"]
assert ask("GET", f"{APPS}/deployments/demo")["metadata"]["generation"] == before
ask("GET", f"{CORE}/configmaps/demo-notes", expect=(404,))
print("tried")

releases.create(2, "pending-upgrade")
apply(first, second)
eventually("the upgrade", ready)
template = ask("GET", f"{APPS}/deployments/demo")["spec"]["template"]
assert template["metadata"]["labels"] == {"app": "demo", "mesh": "on"}, template["metadata"]
assert [e["name"] for e in template["spec"]["containers"][0]["env"]] == ["LEVEL", "COLOUR"], template["spec"]
releases.update(1, "superseded")
releases.update(2, "deployed")
assert releases.list("name=demo,owner=helm,status=deployed") == {"2": "deployed"}
kept = ask("GET", f"{CORE}/secrets?fieldSelector={quote('type=helm.sh/release.v1')}")["items"]
assert len(kept) == 2
print("upgraded")

# An upgrade that the server refuses is recorded as failed, and rolled back to what was.
releases.create(3, "pending-upgrade")
broken = {**second, f"{APPS}/deployments/demo": (APPS, json.loads(json.dumps(second[f"{APPS}/deployments/demo"][1])))}
broken[f"{APPS}/deployments/demo"][1]["spec"]["selector"]["matchLabels"]["app"] = "other"
patch = two_way(second[f"{APPS}/deployments/demo"][1], broken[f"{APPS}/deployments/demo"][1])
refused = ask("PATCH", f"{APPS}/deployments/demo?fieldManager=helm", patch, STRATEGIC, expect=(422,))
assert refused["reason"] == "Invalid", refused
releases.update(3, "failed")
releases.create(4, "pending-rollback")
apply(second, first)
eventually("the rollback", ready)
eventually(
    "the end of what the older release has not",
    lambda: ask("GET", f"{CORE}/configmaps/demo-notes", expect=(200, 404)).get("reason") == "NotFound",
)
env = ask("GET", f"{APPS}/deployments/demo")["spec"]["template"]["spec"]["containers"][0]["env"]
assert env[0] == {"name": "LEVEL", "value": "info"}, env
for revision, status in ((2, "superseded"), (4, "deployed")):
    releases.update(revision, status)
assert releases.list() == {"1": "superseded", "2": "superseded", "3": "failed", "4": "deployed"}
print("rolled back")

releases.update(4, "uninstalling")
for path in reversed(list(first)):
    ask("DELETE", path, {"propagationPolicy": "Background"})
for path in first:
    eventually(path, lambda: ask("GET", path, expect=(200, 404)).get("reason") == "NotFound")
eventually("the pods' end", lambda: not ask("GET", f"{CORE}/pods?labelSelector=app%3Ddemo")["items"])
for revision in releases.list():
    ask("DELETE", f"{releases.path}/{releases.name(revision)}")
assert releases.list() == {}
print("uninstalled")
