//! Admission plugins in a complete server with a memory store.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::ResourceQuota;
use k8s_openapi::jiff::Timestamp;
use knarr_api::registry::{
    CERTIFICATE_SIGNING_REQUEST, DEPLOYMENT, INGRESS, INGRESS_CLASS, LIMIT_RANGE, NAMESPACE, NODE,
    PERSISTENT_VOLUME_CLAIM, POD, RESOURCE_QUOTA, SERVICE_ACCOUNT, STORAGE_CLASS,
};
use knarr_api::{Kind, Object, k8s_openapi};
use knarr_apimachinery::Error;
use knarr_client::{Conn, NodeDialer, Preconditions};
use serde_json::{Value, json};

use crate::pipeline::write::DeleteRequest;
use crate::request::{Ctx, Target};
use crate::seams::{Clock, Entropy};
use crate::server::{Config, ISSUER, Seams, Server};
use crate::user::{MASTERS, User};
use crate::{ServiceRange, pki};

struct FixedClock;

impl Clock for FixedClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }
}

/// Deterministic: each draw is one higher than the last.
#[derive(Default)]
struct CountingEntropy(std::sync::atomic::AtomicU8);

impl Entropy for CountingEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        bytes.fill(0);
        bytes[0] = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

struct UnreachableNodes;

#[async_trait]
impl NodeDialer for UnreachableNodes {
    async fn dial(&self, _: &str) -> std::io::Result<Box<dyn Conn>> {
        Err(std::io::ErrorKind::NotFound.into())
    }
}

struct Cluster {
    server: Arc<Server>,
}

/// The result of a request, with its warnings and audit annotations.
struct Outcome {
    result: Result<Arc<Object>, Error>,
    warnings: Vec<String>,
    audit_annotations: BTreeMap<String, String>,
}

impl Outcome {
    fn message(&self) -> &str {
        self.result.as_ref().map_or_else(|e| e.message(), |_| "")
    }

    fn json(&self) -> Value {
        serde_json::from_slice(self.result.as_ref().unwrap().json()).unwrap()
    }
}

impl Cluster {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let pki = pki::Pki::open(directory.path(), FixedClock.now()).unwrap();
        let config = Config {
            advertised: "127.0.0.1:6443".into(),
            address: [192, 0, 2, 1].into(),
            port: 6443,
            service_range: ServiceRange::parse("10.96.0.0/16").unwrap(),
            static_tokens: Default::default(),
            issuer: ISSUER.into(),
            service_account_key: pki.service_account_key().unwrap(),
            options: crate::Options::default(),
        };
        let seams = Seams {
            clock: Arc::new(FixedClock),
            entropy: Arc::new(CountingEntropy::default()),
            nodes: Arc::new(UnreachableNodes),
        };
        let store = knarr_store::open(knarr_store::Config::Memory).await.unwrap();
        let server = Server::new(config, seams, store).await.unwrap();
        let cluster = Cluster { server };
        cluster
            .create(
                &SERVICE_ACCOUNT,
                "default",
                json!({"metadata": {"name": "default"}}),
            )
            .await
            .result
            .unwrap();
        cluster
    }

    fn ctx(&self) -> Ctx {
        Ctx::new(User::new("admin", [MASTERS]), self.server.pipeline.clock.now())
    }

    async fn create(&self, kind: &Kind, namespace: &str, object: Value) -> Outcome {
        self.create_as(self.ctx(), kind, namespace, object).await
    }

    async fn dry_run(&self, kind: &Kind, namespace: &str, object: Value) -> Outcome {
        let mut ctx = self.ctx();
        ctx.dry_run = true;
        self.create_as(ctx, kind, namespace, object).await
    }

    async fn create_as(&self, mut ctx: Ctx, kind: &Kind, namespace: &str, object: Value) -> Outcome {
        let object = kind.ops.decode(object.to_string().as_bytes()).unwrap().object;
        let result = self
            .server
            .pipeline
            .create(&mut ctx, &Target::main(kind, namespace, ""), object)
            .await;
        Outcome {
            result,
            warnings: ctx.warnings.into(),
            audit_annotations: ctx.audit_annotations,
        }
    }

    /// Updates an existing object, through this subresource.
    async fn change(
        &self,
        mut ctx: Ctx,
        kind: &Kind,
        (namespace, name, subresource): (&str, &str, &str),
        change: impl Fn(&mut Value) + Send + Sync,
    ) -> Outcome {
        let target = Target {
            subresource,
            ..Target::main(kind, namespace, name)
        };
        let result = self
            .server
            .pipeline
            .update(&mut ctx, &target, &Preconditions::default(), &mut |_, old| {
                let mut value: Value = serde_json::from_slice(old.json()).unwrap();
                change(&mut value);
                Ok(kind.ops.decode(value.to_string().as_bytes()).unwrap().object)
            })
            .await;
        Outcome {
            result,
            warnings: ctx.warnings.into(),
            audit_annotations: ctx.audit_annotations,
        }
    }

    async fn update(
        &self,
        kind: &Kind,
        at: (&str, &str, &str),
        change: impl Fn(&mut Value) + Send + Sync,
    ) -> Outcome {
        self.change(self.ctx(), kind, at, change).await
    }
}

fn plain_pod(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}})
}

#[tokio::test(start_paused = true)]
async fn violations_of_enforce_are_denied_and_of_warn_are_returned_as_warnings() {
    let c = Cluster::new().await;
    let label = |mode: &'static str, level: &'static str| {
        let c = &c;
        async move {
            c.update(&NAMESPACE, ("", "default", ""), |n| {
                n["metadata"]["labels"][format!("pod-security.kubernetes.io/{mode}")] = json!(level);
            })
            .await
        }
    };
    label("audit", "restricted").await.result.unwrap();
    let host = json!({"metadata": {"name": "host"}, "spec": {"hostNetwork": true,
        "containers": [{"name": "c", "image": "i:1"}]}});
    let admitted = c.create(&POD, "default", host.clone()).await;
    assert_eq!(admitted.warnings, [] as [&str; 0]);
    assert!(
        admitted.audit_annotations["pod-security.kubernetes.io/audit-violations"].starts_with(
            "would violate PodSecurity \"restricted:latest\": host namespaces (hostNetwork=true), "
        )
    );

    let relabelled = label("enforce", "baseline").await;
    relabelled.result.as_ref().unwrap();
    assert_eq!(
        relabelled.warnings,
        [
            "existing pods in namespace \"default\" violate the new PodSecurity enforce level \"baseline:latest\"",
            "host: host namespaces",
        ]
    );
    let mut other = host.clone();
    other["metadata"] = json!({"generateName": "host-"});
    let denied = c.create(&POD, "default", other).await;
    let message = denied.message();
    assert!(message.starts_with("pods \"host-"), "{message}");
    assert!(
        message.ends_with(
            "\" is forbidden: violates PodSecurity \"baseline:latest\": host namespaces (hostNetwork=true)"
        ),
        "{message}"
    );
    // A template that violates the enforce level gets a warning.
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": host["spec"]}}});
    let warned = c.create(&DEPLOYMENT, "default", deployment).await;
    assert_eq!(
        warned.warnings,
        ["would violate PodSecurity \"baseline:latest\": host namespaces (hostNetwork=true)"]
    );
    // An update of a pod may omit its priority.
    let replaced = c
        .update(&POD, ("default", "host", ""), |p| {
            let spec = p["spec"].as_object_mut().unwrap();
            spec.remove("priority");
            spec.remove("preemptionPolicy");
        })
        .await;
    assert_eq!(replaced.json()["spec"]["priority"], 0);
    // A pod that was admitted before can be updated, but its image cannot change.
    let touched = c
        .update(&POD, ("default", "host", ""), |p| {
            p["metadata"]["labels"]["x"] = json!("y")
        })
        .await;
    touched.result.as_ref().unwrap();
    let changed = c
        .update(&POD, ("default", "host", ""), |p| {
            p["spec"]["containers"][0]["image"] = json!("i:2")
        })
        .await;
    assert!(
        changed.message().contains("violates PodSecurity"),
        "{}",
        changed.message()
    );

    let wrong = label("warn", "strict").await;
    assert_eq!(
        wrong.message(),
        "Namespace \"default\" is invalid: metadata.labels[pod-security.kubernetes.io/warn]: Invalid value: \"strict\": \
must be one of privileged, baseline, restricted"
    );
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_is_checked_against_quotas_and_charged_to_none() {
    let c = Cluster::new().await;
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}});
    c.create(&RESOURCE_QUOTA, "default", quota).await.result.unwrap();
    let unknown = c.create(&POD, "default", plain_pod("a")).await;
    assert_eq!(
        unknown.message(),
        "",
        "a quota that was not counted yet has no limits"
    );
    c.update(&RESOURCE_QUOTA, ("default", "q", "status"), |q| {
        q["status"] = json!({"hard": {"pods": "1"}, "used": {"pods": "0"}});
    })
    .await
    .result
    .unwrap();
    let used = || {
        let found = c
            .server
            .pipeline
            .cache
            .get(&RESOURCE_QUOTA, "default", "q")
            .unwrap();
        let quota: ResourceQuota = found.to_typed().unwrap();
        quota.status.unwrap().used.unwrap()["pods"].0.clone()
    };
    assert_eq!(c.dry_run(&POD, "default", plain_pod("b")).await.message(), "");
    assert_eq!(used(), "0");
    assert_eq!(c.create(&POD, "default", plain_pod("b")).await.message(), "");
    assert_eq!(used(), "1");
    assert_eq!(
        c.dry_run(&POD, "default", plain_pod("d")).await.message(),
        "pods \"d\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1"
    );
}

#[tokio::test(start_paused = true)]
async fn objects_without_a_class_get_the_default_and_claims_expand_only_if_their_class_allows_it() {
    let c = Cluster::new().await;
    let claim = |name: &str| {
        json!({"metadata": {"name": name}, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}})
    };
    let without = c
        .create(&PERSISTENT_VOLUME_CLAIM, "default", claim("a"))
        .await
        .json();
    assert_eq!(without["spec"]["storageClassName"], Value::Null);
    let class = json!({"metadata": {"name": "gold", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": "p", "allowVolumeExpansion": true});
    c.create(&STORAGE_CLASS, "", class).await.result.unwrap();
    let with = c
        .create(&PERSISTENT_VOLUME_CLAIM, "default", claim("b"))
        .await
        .json();
    assert_eq!(with["spec"]["storageClassName"], "gold");

    let grow = |name: &'static str| {
        let c = &c;
        async move {
            let at = ("default", name, "");
            c.update(&PERSISTENT_VOLUME_CLAIM, at, |claim| {
                claim["spec"]["resources"]["requests"]["storage"] = json!("2Gi");
            })
            .await
        }
    };
    let bind = |name: &'static str| {
        let c = &c;
        async move {
            c.update(&PERSISTENT_VOLUME_CLAIM, ("default", name, ""), |claim| {
                claim["spec"]["volumeName"] = json!("v");
            })
            .await
            .result
            .unwrap();
            c.update(&PERSISTENT_VOLUME_CLAIM, ("default", name, "status"), |claim| {
                claim["status"] = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}});
            })
            .await
            .result
            .unwrap();
        }
    };
    bind("a").await;
    bind("b").await;
    assert_eq!(
        grow("a").await.message(),
        "persistentvolumeclaims \"a\" is forbidden: only dynamically provisioned pvc can be resized and the storageclass \
that provisions the pvc must support resize"
    );
    assert_eq!(grow("b").await.message(), "");

    let class = json!({"metadata": {"name": "web", "annotations": {"ingressclass.kubernetes.io/is-default-class": "true"}},
        "spec": {"controller": "example.com/web"}});
    c.create(&INGRESS_CLASS, "", class).await.result.unwrap();
    let backend = json!({"service": {"name": "s", "port": {"number": 1}}});
    let ingress = json!({"metadata": {"name": "i"}, "spec": {"defaultBackend": backend}});
    let ingress = c.create(&INGRESS, "default", ingress).await.json();
    assert_eq!(ingress["spec"]["ingressClassName"], "web");
}

#[tokio::test(start_paused = true)]
async fn a_pod_gets_its_nodes_topology_labels_and_is_not_resized_beyond_its_allocatable() {
    let c = Cluster::new().await;
    let node =
        json!({"metadata": {"name": "n", "labels": {"topology.kubernetes.io/zone": "z", "other": "o"}}});
    c.create(&NODE, "", node).await.result.unwrap();
    c.update(&NODE, ("", "n", "status"), |n| {
        n["status"]["allocatable"] = json!({"cpu": "2", "memory": "1Gi"})
    })
    .await
    .result
    .unwrap();
    let mut assigned = plain_pod("p");
    assigned["spec"]["nodeName"] = json!("n");
    assigned["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1"}});
    let assigned = c.create(&POD, "default", assigned).await.json();
    assert_eq!(
        assigned["metadata"]["labels"],
        json!({"topology.kubernetes.io/zone": "z"})
    );
    let resize_cpu = |cpu: &'static str| {
        let c = &c;
        async move {
            c.update(&POD, ("default", "p", "resize"), |p| {
                p["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!(cpu);
            })
            .await
        }
    };
    assert_eq!(
        resize_cpu("3").await.message(),
        "pods \"p\" is forbidden: node didn't have enough allocatable resources: cpu, requested: 3000, allocatable: 2000"
    );
    // LimitRanger and ResourceQuota check resizes too.
    let range =
        json!({"metadata": {"name": "l"}, "spec": {"limits": [{"type": "Pod", "max": {"cpu": "1500m"}}]}});
    c.create(&LIMIT_RANGE, "default", range).await.result.unwrap();
    assert_eq!(
        resize_cpu("1200m").await.message(),
        "pods \"p\" is forbidden: maximum cpu usage per Pod is 1500m.  No limit is specified"
    );
}

#[tokio::test(start_paused = true)]
async fn certificates_are_approved_and_signed_only_with_permission_for_the_signer() {
    let c = Cluster::new().await;
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, "ann");
    let pem = params.serialize_request(&key).unwrap().pem().unwrap();
    use base64::Engine;
    let request = json!({"metadata": {"name": "r"}, "spec": {"signerName": "example.com/own", "usages": ["client auth"],
        "request": base64::engine::general_purpose::STANDARD.encode(pem)}});
    c.create(&CERTIFICATE_SIGNING_REQUEST, "", request)
        .await
        .result
        .unwrap();
    let ann = || Ctx::new(User::new("ann", [] as [&str; 0]), c.server.pipeline.clock.now());
    let approve = |r: &mut Value| {
        r["status"]["conditions"] =
            json!([{"type": "Approved", "status": "True", "reason": "r", "message": "m"}]);
    };
    let at = |subresource: &'static str| ("", "r", subresource);
    let denied = c
        .change(ann(), &CERTIFICATE_SIGNING_REQUEST, at("approval"), approve)
        .await;
    assert_eq!(
        denied.message(),
        "certificatesigningrequests.certificates.k8s.io \"r\" is forbidden: user not permitted to approve requests with \
signerName \"example.com/own\""
    );
    assert_eq!(
        c.update(&CERTIFICATE_SIGNING_REQUEST, at("approval"), approve)
            .await
            .message(),
        ""
    );
    let fail = |r: &mut Value| {
        let conditions = r["status"]["conditions"].as_array_mut().unwrap();
        conditions.push(json!({"type": "Failed", "status": "True", "reason": "r", "message": "m"}));
    };
    let denied = c
        .change(ann(), &CERTIFICATE_SIGNING_REQUEST, at("status"), fail)
        .await;
    assert!(
        denied
            .message()
            .ends_with("user not permitted to sign requests with signerName \"example.com/own\""),
        "{}",
        denied.message()
    );
    assert_eq!(
        c.update(&CERTIFICATE_SIGNING_REQUEST, at("status"), fail)
            .await
            .message(),
        ""
    );
}

#[tokio::test(start_paused = true)]
async fn a_client_sees_the_error_of_the_first_stage_that_fails() {
    let c = Cluster::new().await;
    let node = || {
        Ctx::new(
            User::new("system:node:n", ["system:nodes"]),
            c.server.pipeline.clock.now(),
        )
    };
    let invalid = json!({"metadata": {"name": "p"}, "spec": {"containers": []}});
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"pods": "0"}}});
    c.create(&RESOURCE_QUOTA, "default", quota).await.result.unwrap();
    c.update(&RESOURCE_QUOTA, ("default", "q", "status"), |q| {
        q["status"] = json!({"hard": {"pods": "0"}, "used": {"pods": "0"}});
    })
    .await
    .result
    .unwrap();
    for (ctx, namespace, pod, code, stage) in [
        (
            node(),
            "nowhere",
            invalid.clone(),
            404,
            "mutating admission: NamespaceLifecycle",
        ),
        (node(), "default", invalid.clone(), 403, "node restriction"),
        (c.ctx(), "default", invalid, 422, "rejection of what is invalid"),
        (c.ctx(), "default", plain_pod("p"), 403, "quota"),
    ] {
        let created = c.create_as(ctx, &POD, namespace, pod).await;
        assert_eq!(created.result.unwrap_err().code(), code, "{stage}");
    }
    let delete = |uid: Option<&str>| {
        let mut request = DeleteRequest::default();
        request.options.preconditions.uid = uid.map(str::to_string);
        let c = &c;
        async move {
            let target = Target::main(&NAMESPACE, "", "default");
            let deleted = c.server.pipeline.delete(&mut c.ctx(), &target, &request).await;
            deleted.err().map(|e| e.code())
        }
    };
    assert_eq!(delete(Some("another")).await, Some(409), "preconditions");
    assert_eq!(delete(None).await, Some(403), "protected namespaces");
}
