//! The small program is the CNI plugins under their names, else the shim (SPEC N1).

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

#[test]
fn n1_the_small_program_is_the_plugin_that_it_is_called() {
    let started_as = |name: &str, arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_containerd-shim-knarr-v2"))
            .arg0(name)
            .args(arguments)
            .env("CNI_COMMAND", "VERSION")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{name}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    for plugin in [knarr_cni::PLUGIN, knarr_cni::LOOPBACK] {
        let answer = started_as(&format!("/cni/bin/{plugin}"), &[]);
        let versions: serde_json::Value = serde_json::from_str(&answer).unwrap();
        assert!(
            versions["supportedVersions"].to_string().contains("1.0.0"),
            "{plugin}: {answer}"
        );
    }
    assert_eq!(
        started_as(knarr_shim::NAME, &["-v"]).trim_end(),
        knarr_shim::version()
    );
}
