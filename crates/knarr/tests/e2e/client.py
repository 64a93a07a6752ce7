"""Drives a cluster with the Python client: create, watch, patch, exec, delete. Arguments: kubeconfig, namespace."""

import sys

from kubernetes import client, config, watch
from kubernetes.stream import stream

config.load_kube_config(sys.argv[1])
namespace = sys.argv[2]
core = client.CoreV1Api()
pod = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "py", "labels": {"made": "python"}},
    "spec": {
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {"name": "c", "image": "localhost/knarr/busybox:1", "command": ["sleep", "3600"]}
        ],
    },
}
created = core.create_namespaced_pod(namespace, pod)
assert created.status.phase == "Pending", created.status.phase
print("created")

watcher = watch.Watch()
for event in watcher.stream(
    core.list_namespaced_pod, namespace, label_selector="made=python", timeout_seconds=60
):
    if event["object"].status.phase == "Running":
        print("running")
        watcher.stop()

patched = core.patch_namespaced_pod("py", namespace, {"metadata": {"labels": {"x": "y"}}})
assert patched.metadata.labels == {"made": "python", "x": "y"}, patched.metadata.labels
print("patched")

said = stream(
    core.connect_get_namespaced_pod_exec,
    "py",
    namespace,
    command=["echo", "ahoy"],
    stdin=False,
    stdout=True,
    stderr=True,
    tty=False,
)
print("exec:", said.strip())

core.delete_namespaced_pod("py", namespace)
for event in watcher.stream(
    core.list_namespaced_pod, namespace, label_selector="made=python", timeout_seconds=60
):
    if event["type"] == "DELETED":
        watcher.stop()
try:
    core.read_namespaced_pod("py", namespace)
except client.ApiException as e:
    assert e.status == 404, e
    print("deleted")
