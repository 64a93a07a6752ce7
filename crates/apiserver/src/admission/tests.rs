//! Plugins behind a whole server, over the memory store.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::ResourceQuota;
use k8s_openapi::jiff::Timestamp;
use knarr_api::registry::{
    CERTIFICATE_SIGNING_REQUEST, DEPLOYMENT, INGRESS, INGRESS_CLASS, LIMIT_RANGE, NAMESPACE, NODE,
    PERSISTENT_VOLUME_CLAIM, POD, RESOURCE_QUOTA, SERVICE_ACCOUNT, STORAGE_CLASS,
};
use knarr_api::{Error, Kind, Object, k8s_openapi};
use knarr_client::{Conn, NodeDialer, Preconditions};
use serde_json::{Value, json};

use crate::pipeline::{Ctx, Target};
use crate::seams::{Clock, Entropy};
use crate::server::{Config, ISSUER, Seams, Server};
use crate::user::{MASTERS, User};
use crate::{ServiceRange, pki};

struct Noon;

impl Clock for Noon {
    fn now(&self) -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }
}

/// Counts instead of drawing lots.
#[derive(Default)]
struct Counter(std::sync::atomic::AtomicU8);

impl Entropy for Counter {
    fn fill(&self, bytes: &mut [u8]) {
        bytes.fill(0);
        bytes[0] = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

struct NoNodes;

#[async_trait]
impl NodeDialer for NoNodes {
    async fn dial(&self, _: &str) -> std::io::Result<Box<dyn Conn>> {
        Err(std::io::ErrorKind::NotFound.into())
    }
}

struct Cluster {
    server: Arc<Server>,
}

/// What a request came to, and what was said beside.
struct Outcome {
    result: Result<Arc<Object>, Error>,
    warnings: Vec<String>,
    notes: BTreeMap<String, String>,
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
        let pki = pki::Pki::open(directory.path(), Noon.now()).unwrap();
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
            clock: Arc::new(Noon),
            entropy: Arc::new(Counter::default()),
            nodes: Arc::new(NoNodes),
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
        Ctx::new(User::new("admin", [MASTERS]), self.server.clock.now())
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
            .create(&mut ctx, &Target::main(kind, namespace, ""), object)
            .await;
        Outcome {
            result,
            warnings: ctx.warnings.into(),
            notes: ctx.audit_annotations,
        }
    }

    /// Changes what there is, through this subresource.
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
            .update(&mut ctx, &target, &Preconditions::default(), &mut |_, old| {
                let mut value: Value = serde_json::from_slice(old.json()).unwrap();
                change(&mut value);
                Ok(kind.ops.decode(value.to_string().as_bytes()).unwrap().object)
            })
            .await;
        Outcome {
            result,
            warnings: ctx.warnings.into(),
            notes: ctx.audit_annotations,
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
async fn what_a_namespace_enforces_is_refused_and_what_it_warns_of_is_told() {
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
    let let_in = c.create(&POD, "default", host.clone()).await;
    assert_eq!(let_in.warnings, [] as [&str; 0]);
    assert!(
        let_in.notes["pod-security.kubernetes.io/audit-violations"].starts_with(
            "would violate PodSecurity \"restricted:latest\": host namespaces (hostNetwork=true), "
        )
    );

    let stricter = label("enforce", "baseline").await;
    stricter.result.as_ref().unwrap();
    assert_eq!(
        stricter.warnings,
        [
            "existing pods in namespace \"default\" violate the new PodSecurity enforce level \"baseline:latest\"",
            "host: host namespaces",
        ]
    );
    let mut other = host.clone();
    other["metadata"] = json!({"generateName": "host-"});
    let refused = c.create(&POD, "default", other).await;
    let message = refused.message();
    assert!(message.starts_with("pods \"host-"), "{message}");
    assert!(
        message.ends_with(
            "\" is forbidden: violates PodSecurity \"baseline:latest\": host namespaces (hostNetwork=true)"
        ),
        "{message}"
    );
    // Of what is enforced a template's author is warned.
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": host["spec"]}}});
    let warned = c.create(&DEPLOYMENT, "default", deployment).await;
    assert_eq!(
        warned.warnings,
        ["would violate PodSecurity \"baseline:latest\": host namespaces (hostNetwork=true)"]
    );
    // Who replaces a pod need not repeat its priority.
    let replaced = c
        .update(&POD, ("default", "host", ""), |p| {
            let spec = p["spec"].as_object_mut().unwrap();
            spec.remove("priority");
            spec.remove("preemptionPolicy");
        })
        .await;
    assert_eq!(replaced.json()["spec"]["priority"], 0);
    // What was let in before stays as it is, but gets no other image.
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
async fn a_dry_run_is_held_against_quotas_and_charged_to_none() {
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
        let found = c.server.cache.get(&RESOURCE_QUOTA, "default", "q").unwrap();
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
async fn what_names_no_class_gets_the_default_and_a_claim_grows_as_its_class_allows() {
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
async fn a_pod_learns_where_its_node_is_and_grows_no_further_than_it() {
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
    let mut placed = plain_pod("p");
    placed["spec"]["nodeName"] = json!("n");
    placed["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1"}});
    let placed = c.create(&POD, "default", placed).await.json();
    assert_eq!(
        placed["metadata"]["labels"],
        json!({"topology.kubernetes.io/zone": "z"})
    );
    let resize = |cpu: &'static str| {
        let c = &c;
        async move {
            c.update(&POD, ("default", "p", "resize"), |p| {
                p["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!(cpu);
            })
            .await
        }
    };
    assert_eq!(
        resize("3").await.message(),
        "pods \"p\" is forbidden: node didn't have enough allocatable resources: cpu, requested: 3000, allocatable: 2000"
    );
    // A LimitRange and a quota look at resizes too.
    let range =
        json!({"metadata": {"name": "l"}, "spec": {"limits": [{"type": "Pod", "max": {"cpu": "1500m"}}]}});
    c.create(&LIMIT_RANGE, "default", range).await.result.unwrap();
    assert_eq!(
        resize("1200m").await.message(),
        "pods \"p\" is forbidden: maximum cpu usage per Pod is 1500m.  No limit is specified"
    );
}

#[tokio::test(start_paused = true)]
async fn certificates_are_approved_and_signed_by_those_who_may() {
    let c = Cluster::new().await;
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "somebody");
    let pem = params.serialize_request(&key).unwrap().pem().unwrap();
    use base64::Engine;
    let request = json!({"metadata": {"name": "r"}, "spec": {"signerName": "example.com/own", "usages": ["client auth"],
        "request": base64::engine::general_purpose::STANDARD.encode(pem)}});
    c.create(&CERTIFICATE_SIGNING_REQUEST, "", request)
        .await
        .result
        .unwrap();
    let nobody = || Ctx::new(User::new("nobody", [] as [&str; 0]), c.server.clock.now());
    let approve = |r: &mut Value| {
        r["status"]["conditions"] =
            json!([{"type": "Approved", "status": "True", "reason": "r", "message": "m"}]);
    };
    let at = |subresource: &'static str| ("", "r", subresource);
    let refused = c
        .change(nobody(), &CERTIFICATE_SIGNING_REQUEST, at("approval"), approve)
        .await;
    assert_eq!(
        refused.message(),
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
    let refused = c
        .change(nobody(), &CERTIFICATE_SIGNING_REQUEST, at("status"), fail)
        .await;
    assert!(
        refused
            .message()
            .ends_with("user not permitted to sign requests with signerName \"example.com/own\""),
        "{}",
        refused.message()
    );
    assert_eq!(
        c.update(&CERTIFICATE_SIGNING_REQUEST, at("status"), fail)
            .await
            .message(),
        ""
    );
}
