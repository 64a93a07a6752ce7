//! Plugins behind a whole server, over the memory store.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::ResourceQuota;
use k8s_openapi::jiff::Timestamp;
use knarr_api::registry::{DEPLOYMENT, NAMESPACE, POD, RESOURCE_QUOTA, SERVICE_ACCOUNT};
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

pub(super) struct Cluster {
    pub server: Arc<Server>,
}

/// What a request came to, and what was said beside.
pub(super) struct Outcome {
    pub result: Result<Arc<Object>, Error>,
    pub warnings: Vec<String>,
    pub notes: BTreeMap<String, String>,
}

impl Outcome {
    pub fn message(&self) -> &str {
        self.result.as_ref().map_or_else(|e| e.message(), |_| "")
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(self.result.as_ref().unwrap().json()).unwrap()
    }
}

impl Cluster {
    pub async fn new() -> Self {
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

    pub async fn create(&self, kind: &'static Kind, namespace: &str, object: Value) -> Outcome {
        self.create_as(self.ctx(), kind, namespace, object).await
    }

    pub async fn dry_run(&self, kind: &'static Kind, namespace: &str, object: Value) -> Outcome {
        let mut ctx = self.ctx();
        ctx.dry_run = true;
        self.create_as(ctx, kind, namespace, object).await
    }

    pub async fn create_as(
        &self,
        mut ctx: Ctx,
        kind: &'static Kind,
        namespace: &str,
        object: Value,
    ) -> Outcome {
        let object = kind.ops.decode(object.to_string().as_bytes()).unwrap().object;
        let result = self
            .server
            .create(&mut ctx, &Target::main(kind, namespace, ""), object)
            .await;
        Outcome {
            result,
            warnings: ctx.warnings,
            notes: ctx.audit_annotations,
        }
    }

    /// Changes what there is, through this subresource.
    pub async fn change(
        &self,
        mut ctx: Ctx,
        kind: &'static Kind,
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
            warnings: ctx.warnings,
            notes: ctx.audit_annotations,
        }
    }

    pub async fn update(
        &self,
        kind: &'static Kind,
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
