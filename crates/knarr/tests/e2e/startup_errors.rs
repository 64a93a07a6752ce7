//! Errors before a cluster has started: each names its cause and what to do.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use crate::cluster::{Cluster, eventually, has, same, text};
use crate::{Outcome, StandaloneScenario};

pub const SCENARIOS: &[StandaloneScenario] = &[
    (
        "an_invalid_configuration_file_is_rejected_with_every_error",
        bad_config,
    ),
    ("a_port_in_use_is_named", port_in_use),
    (
        "a_missing_containerd_is_named_with_its_package",
        missing_containerd,
    ),
    ("an_unreadable_kubeconfig_is_named", bad_kubeconfig),
    ("a_data_directory_in_use_names_its_holder", directory_in_use),
];

fn knarr(args: &[&str]) -> std::io::Result<Output> {
    Command::new(env!("CARGO_BIN_EXE_knarr")).args(args).output()
}

fn bad_config() -> Outcome {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("knarr.yaml");
    let keys = dir.path().join("keys.yaml");
    std::fs::write(
        &keys,
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n\
         - resources: [secrets]\n  providers: [{aesgcm: {keys: [{name: k, secret: c2hvcnQ=}]}}]\n",
    )?;
    std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(0o644))?;
    let settings = format!(
        "listen: nowhere\nstore: floppy\ncolour: red\nencryptionProviderConfig: {}\n",
        keys.display()
    );
    std::fs::write(&file, settings)?;
    let out = knarr(&["up", "--config", &file.display().to_string()])?;
    same(&format!("{:?}", out.status.code()), "Some(2)")?;
    let output = text(&out);
    for part in [
        "5 errors",
        "keys.yaml: its mode is 0644",
        "keys.yaml: resources[0].providers[0].aesgcm.keys[0].secret: Invalid value: \"REDACTED\": 5 bytes",
        "listen: \"nowhere\": expected an address with a port",
        "expected embedded, memory or etcd",
        "colour: unknown setting",
    ] {
        has(&output, part)?;
    }
    let out = knarr(&["up", "--config", "/nowhere/knarr.yaml"])?;
    same(&format!("{:?}", out.status.code()), "Some(2)")?;
    has(&text(&out), "/nowhere/knarr.yaml: cannot be read")
}

fn port_in_use() -> Outcome {
    let dir = tempfile::tempdir()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    let out = server(dir.path(), &["server", "--listen", &address])?;
    same(&format!("{:?}", out.status.code()), "Some(1)")?;
    has(&text(&out), &address)?;
    has(&text(&out), "in use")
}

fn missing_containerd() -> Outcome {
    let dir = tempfile::tempdir()?;
    let out = server(
        dir.path(),
        &[
            "up",
            "--listen",
            "127.0.0.1:0",
            "--containerd",
            "/nowhere/containerd",
        ],
    )?;
    same(&format!("{:?}", out.status.code()), "Some(1)")?;
    has(&text(&out), "apt-get install containerd")
}

fn bad_kubeconfig() -> Outcome {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("kubeconfig");
    std::fs::write(&file, "clusters: 7")?;
    let out = server(
        dir.path(),
        &["agent", "--bootstrap-kubeconfig", &file.display().to_string()],
    )?;
    same(&format!("{:?}", out.status.code()), "Some(1)")?;
    has(&text(&out), &file.display().to_string())
}

fn directory_in_use() -> Outcome {
    let cluster = Cluster::prepare("held")?;
    cluster.launch_server()?;
    let second = || -> Result<String, libtest_mimic::Failed> {
        let data = cluster.data_dir().display().to_string();
        let mut args = vec!["server", "--listen", "127.0.0.1:0", "--data-dir", &data];
        let config = cluster.data_dir().with_file_name("second").display().to_string();
        args.extend(["--kubeconfig", &config]);
        let out = knarr(&args)?;
        same(&format!("{:?}", out.status.code()), "Some(1)")?;
        Ok(text(&out))
    };
    // The kubeconfig is written when the directory is locked and the server has started.
    eventually("the first server", || cluster.kubeconfig().exists())?;
    let rejected = second();
    let holder = cluster.pid()?;
    cluster.kill()?;
    let rejected = rejected?;
    has(&rejected, &format!("in use by knarr process {holder}"))?;
    has(&rejected, "knarr down --data-dir")
}

fn server(dir: &std::path::Path, args: &[&str]) -> std::io::Result<Output> {
    let (data, config) = (
        dir.join("d").display().to_string(),
        dir.join("k").display().to_string(),
    );
    let mut all = args.to_vec();
    all.extend(["--data-dir", &data, "--kubeconfig", &config]);
    knarr(&all)
}
