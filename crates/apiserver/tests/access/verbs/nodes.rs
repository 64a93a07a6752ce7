//! What a node may read and write of objects that are not only its own: the Node authorizer's rules of v1.36, and those that
//! knarr's kubelets need in addition.

use serde_json::{Value, json};

use crate::cluster::{Cluster, Credentials};

const NAMESPACE: &str = "/api/v1/namespaces/default";
const VOLUMES: &str = "/api/v1/persistentvolumes";
const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments";
const SLICES: &str = "/apis/discovery.k8s.io/v1";

fn node() -> Credentials {
    Credentials::token("n1-token")
}

/// Volumes, attachments and pods of two nodes.
async fn two_nodes(cluster: &Cluster) {
    let account = json!({"metadata": {"name": "default"}});
    cluster
        .create(&format!("{NAMESPACE}/serviceaccounts"), account)
        .await;
    for name in ["n1", "n2"] {
        cluster
            .create("/api/v1/nodes", json!({"metadata": {"name": name}}))
            .await;
        let volume = json!({
            "metadata": {"name": name, "labels": {"knarr.io/node": name}, "finalizers": ["knarr.io/local-volume"]},
            "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": "local",
                "local": {"path": "/x"}, "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "kubernetes.io/hostname", "operator": "In", "values": [name]}]}]}}}});
        cluster.create(VOLUMES, volume).await;
        let attachment = json!({"metadata": {"name": name}, "spec": {"attacher": "d", "nodeName": name,
            "source": {"persistentVolumeName": name}}});
        cluster.create(ATTACHMENTS, attachment).await;
        let pod = json!({"metadata": {"name": name}, "spec": {"nodeName": name,
            "containers": [{"name": "c", "image": "i"}]}});
        cluster.create(&format!("{NAMESPACE}/pods"), pod).await;
    }
    cluster
        .create("/api/v1/namespaces", json!({"metadata": {"name": "other"}}))
        .await;
}

#[tokio::test]
async fn a4_a_node_lists_volumes_attachments_and_slices_only_where_they_are_its_own() {
    let cluster = Cluster::start().await;
    two_nodes(&cluster).await;
    let watch = "watch=true&timeoutSeconds=1";
    let (own, other) = (
        "labelSelector=knarr.io/node%3Dn1",
        "labelSelector=knarr.io/node%3Dn2",
    );
    let (at, elsewhere) = (
        "fieldSelector=spec.nodeName%3Dn1",
        "fieldSelector=spec.nodeName%3Dn2",
    );
    for (path, code) in [
        (format!("{VOLUMES}/n1"), 200),
        (format!("{VOLUMES}/n2"), 403),
        (VOLUMES.to_string(), 403),
        (format!("{VOLUMES}?{watch}"), 403),
        (format!("{VOLUMES}?{own}"), 200),
        (format!("{VOLUMES}?{own}&{watch}"), 200),
        (format!("{VOLUMES}?{other}"), 403),
        (format!("{VOLUMES}?labelSelector=knarr.io/node+in+(n1,n2)"), 403),
        (format!("{VOLUMES}?labelSelector=knarr.io/node!%3Dn2"), 403),
        (format!("{VOLUMES}?{own}&{other}"), 200),
        (format!("{VOLUMES}?{other}&{own}"), 403),
        (format!("{VOLUMES}?fieldSelector=metadata.name%3Dn1"), 403),
        (format!("/api/v1/watch/persistentvolumes?{own}"), 403),
        (format!("{ATTACHMENTS}/n1"), 200),
        (format!("{ATTACHMENTS}/n2"), 403),
        (format!("{ATTACHMENTS}/none"), 403),
        (ATTACHMENTS.to_string(), 403),
        (format!("{ATTACHMENTS}?{watch}"), 403),
        (format!("{ATTACHMENTS}?{at}"), 200),
        (format!("{ATTACHMENTS}?{at}&{watch}"), 200),
        (format!("{ATTACHMENTS}?{elsewhere}"), 403),
        (format!("{ATTACHMENTS}?fieldSelector=spec.nodeName!%3Dn2"), 403),
        (format!("{SLICES}/endpointslices"), 403),
        (format!("{SLICES}/endpointslices?{watch}"), 403),
        (format!("{SLICES}/namespaces/default/endpointslices"), 200),
        (format!("{SLICES}/namespaces/default/endpointslices?{watch}"), 200),
        (format!("{SLICES}/namespaces/default/endpointslices/x"), 403),
        (format!("{SLICES}/namespaces/other/endpointslices"), 403),
        // An account is read by name, and so are a pod's objects.
        (format!("{NAMESPACE}/serviceaccounts/default"), 200),
        (
            format!("{NAMESPACE}/serviceaccounts?fieldSelector=metadata.name%3Ddefault"),
            403,
        ),
        (format!("/api/v1/watch/pods?{at}"), 403),
        (format!("/api/v1/pods?{at}"), 200),
        (format!("/api/v1/pods?{at}%5C,x%3Dy"), 403),
    ] {
        let answer = cluster.ask(&node(), "GET", &path, None).await;
        assert_eq!(answer.code, code, "{path}: {}", answer.text);
    }
    let listed = cluster
        .ask(&node(), "GET", &format!("{ATTACHMENTS}?{at}"), None)
        .await;
    let names: Vec<&Value> = listed.body["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|i| &i["metadata"]["name"])
        .collect();
    assert_eq!(names, ["n1"]);
}

#[tokio::test]
async fn a4_a_node_writes_no_more_of_a_volume_than_that_it_has_let_it_go() {
    let cluster = Cluster::start().await;
    two_nodes(&cluster).await;
    let read = |path: String| {
        let cluster = &cluster;
        async move { cluster.admin("GET", &path, None).await.expect(200) }
    };
    let put = |path: String, object: Value| {
        let cluster = &cluster;
        async move { cluster.ask(&node(), "PUT", &path, Some(object)).await }
    };
    let volume = format!("{VOLUMES}/n1");
    let mut stolen = read(volume.clone()).await;
    stolen["spec"]["claimRef"] = json!({"namespace": "other", "name": "claim"});
    let answer = put(volume.clone(), stolen).await;
    assert_eq!(answer.code, 403, "{}", answer.text);
    assert!(
        answer.message().contains("may only remove the finalizer"),
        "{}",
        answer.text
    );
    let mut labelled = read(volume.clone()).await;
    labelled["metadata"]["labels"]["a"] = json!("b");
    assert_eq!(put(volume.clone(), labelled).await.code, 403);
    let mut released = read(volume.clone()).await;
    released["metadata"]["finalizers"] = json!(
        released["metadata"]["finalizers"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|f| **f != "knarr.io/local-volume")
            .collect::<Vec<_>>()
    );
    put(volume.clone(), released.clone()).await.expect(200);
    let mut back = read(volume.clone()).await;
    back["metadata"]["finalizers"] = json!(["kubernetes.io/pv-protection", "knarr.io/local-volume"]);
    assert_eq!(put(volume, back).await.code, 403);

    let attachment = format!("{ATTACHMENTS}/n1");
    let mut held = read(attachment.clone()).await;
    held["metadata"]["finalizers"] = json!(["knarr.io/in-use"]);
    held["metadata"]["annotations"] = json!({"knarr.io/used-by": "u"});
    put(attachment.clone(), held).await.expect(200);
    for change in [
        json!({"annotations": {"knarr.io/used-by": "u", "csi.alpha.kubernetes.io/node-id": "other"}}),
        json!({"finalizers": ["knarr.io/in-use", "mine"]}),
        json!({"labels": {"a": "b"}}),
        json!({"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u"}]}),
    ] {
        let mut other = read(attachment.clone()).await;
        other["metadata"]
            .as_object_mut()
            .unwrap()
            .extend(change.as_object().unwrap().clone());
        let answer = put(attachment.clone(), other).await;
        assert_eq!(answer.code, 403, "{change}: {}", answer.text);
        assert!(
            answer.message().contains("may only change the finalizer"),
            "{}",
            answer.text
        );
    }
    let mut free = read(attachment.clone()).await;
    free["metadata"]["finalizers"] = json!([]);
    put(attachment, free).await.expect(200);
    // The other node's, and creating any, is denied before that.
    let others = read(format!("{ATTACHMENTS}/n2")).await;
    assert_eq!(put(format!("{ATTACHMENTS}/n2"), others.clone()).await.code, 403);
    assert_eq!(
        cluster.ask(&node(), "POST", ATTACHMENTS, Some(others)).await.code,
        403
    );
}
