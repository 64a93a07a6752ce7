//! A kube-rs program creates, watches, patches, execs and deletes.

use std::time::Duration;

use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, AttachParams, DeleteParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::json;
use tokio::io::AsyncReadExt;

use crate::Outcome;
use crate::cluster::{LIMIT, Namespace, Scenario, same};

pub const SCENARIOS: &[(&str, Scenario)] =
    &[("kube_rs_creates_watches_patches_execs_and_deletes", lifecycle)];

fn lifecycle(ns: &Namespace) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async { tokio::time::timeout(LIMIT, program(ns)).await? })
}

async fn program(ns: &Namespace<'_>) -> Outcome {
    let kubeconfig = Kubeconfig::read_from(ns.cluster.kubeconfig())?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let pods: Api<Pod> = Api::namespaced(kube::Client::try_from(config)?, &ns.name);
    let pod: Pod = serde_json::from_value(json!({
        "metadata": { "name": "rs", "labels": { "made": "rust" } },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{ "name": "c", "image": "localhost/knarr/busybox:1", "command": ["sleep", "3600"] }],
        },
    }))?;
    let created = pods.create(&PostParams::default(), &pod).await?;
    let from = created
        .metadata
        .resource_version
        .clone()
        .ok_or("no resourceVersion")?;
    let params = WatchParams::default().labels("made=rust").timeout(60);
    let events = pods.watch(&params, &from).await?;
    let mut events = std::pin::pin!(events);
    loop {
        match events
            .try_next()
            .await?
            .ok_or("the watch ended before the pod ran")?
        {
            WatchEvent::Modified(p)
                if p.status
                    .as_ref()
                    .is_some_and(|s| s.phase.as_deref() == Some("Running")) =>
            {
                break;
            }
            WatchEvent::Error(e) => return Err(e.message.clone().into()),
            _ => {}
        }
    }
    let patch = Patch::Merge(json!({ "metadata": { "labels": { "x": "y" } } }));
    let patched = pods.patch("rs", &PatchParams::default(), &patch).await?;
    same(
        patched
            .metadata
            .labels
            .as_ref()
            .and_then(|l| l.get("x"))
            .map_or("", String::as_str),
        "y",
    )?;
    let stale = pods.replace("rs", &PostParams::default(), &created).await;
    same(
        &format!("{}", matches!(stale, Err(kube::Error::Api(e)) if e.code == 409)),
        "true",
    )?;

    let command = ["sh", "-c", "echo ahoy; echo storm >&2"];
    let mut attached = pods
        .exec("rs", command, &AttachParams::default().stdout(true).stderr(true))
        .await?;
    let (mut out, mut err) = (String::new(), String::new());
    let mut stdout = attached.stdout().ok_or("no stdout")?;
    let mut stderr = attached.stderr().ok_or("no stderr")?;
    tokio::try_join!(stdout.read_to_string(&mut out), stderr.read_to_string(&mut err))?;
    attached.join().await?;
    same(&out, "ahoy\n")?;
    same(&err, "storm\n")?;

    pods.delete("rs", &DeleteParams::default()).await?;
    loop {
        match events
            .try_next()
            .await?
            .ok_or("the watch ended before the pod was deleted")?
        {
            WatchEvent::Deleted(_) => break,
            WatchEvent::Error(e) => return Err(e.message.clone().into()),
            _ => {}
        }
    }
    tokio::time::timeout(Duration::from_secs(5), async {
        match pods.get_opt("rs").await? {
            None => Ok(()),
            Some(_) => Err("it is still there".into()),
        }
    })
    .await?
}
