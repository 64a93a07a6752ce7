//! A claimed block device in a real container, read and written as one.

use std::path::Path;
use std::process::Command;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use knarr_api::k8s_openapi;
use knarr_client::TypedApi;
use serde_json::json;

use super::machine::{Machine, first, phase, shell};

const BYTES: u64 = 1024 * 1024;

/// A file as a block device, until dropped.
struct Loop(String);

impl Loop {
    fn over(file: &Path) -> Self {
        let made = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(file)
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        Loop(String::from_utf8(made.stdout).unwrap().trim().into())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let detached = Command::new("losetup").args(["--detach", &self.0]).status();
        assert!(detached.is_ok_and(|s| s.success()), "{} is not detached", self.0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_writes_the_block_device_that_its_pod_has_claimed() {
    let Some(machine) = Machine::start(37).await else {
        return;
    };
    machine.ready().await;
    let image = machine.dir.path().join("disk");
    std::fs::File::create(&image).unwrap().set_len(BYTES).unwrap();
    let device = Loop::over(&image);
    let volume = json!({
        "metadata": {"name": "disk", "uid": "v"},
        "spec": {
            "accessModes": ["ReadWriteMany"], "volumeMode": "Block", "capacity": {"storage": "1Mi"},
            "local": {"path": device.0}, "claimRef": {"namespace": "default", "name": "disk"},
        },
    });
    let volume: PersistentVolume = serde_json::from_value(volume).unwrap();
    let volume = machine.api.create_as(volume).await.unwrap();
    let claim = json!({
        "metadata": {"namespace": "default", "name": "disk"},
        "spec": {
            "accessModes": ["ReadWriteMany"], "volumeMode": "Block", "volumeName": "disk",
            "resources": {"requests": {"storage": "1Mi"}},
        },
    });
    let claim: PersistentVolumeClaim = serde_json::from_value(claim).unwrap();
    let claim = machine.api.create_as(claim).await.unwrap();
    let mut bound = (*claim).clone();
    bound.status.get_or_insert_default().phase = Some("Bound".into());
    machine.api.update_status_as(bound).await.unwrap();
    let mut held = (*volume).clone();
    let holder = held.spec.as_mut().unwrap().claim_ref.as_mut().unwrap();
    holder.uid = claim.metadata.uid.clone();
    machine.api.update_as(held).await.unwrap();

    let spec = |read_only: bool, script: &str| {
        let mut containers = shell(script);
        containers[0]["volumeDevices"] = json!([{"name": "disk", "devicePath": "/dev/claimed"}]);
        let claim = json!({"claimName": "disk", "readOnly": read_only});
        json!({
            "containers": containers, "restartPolicy": "Never",
            "volumes": [{"name": "disk", "persistentVolumeClaim": claim}],
        })
    };
    let writes = "test -b /dev/claimed && printf knarr | dd of=/dev/claimed bs=512 seek=7 conv=sync,fsync";
    machine.create("writer", spec(false, writes)).await;
    machine.wait("writer", "done", |p| phase(p) == "Succeeded").await;
    let disk = std::fs::read(&image).unwrap();
    assert_eq!(&disk[7 * 512..7 * 512 + 5], b"knarr");
    // Who has it read-only cannot write it.
    let reads = "dd if=/dev/claimed bs=512 skip=7 count=1 2>/dev/null | head -c 5 >/dev/termination-log; \
                 ! printf lost | dd of=/dev/claimed bs=512 seek=7 conv=sync,fsync";
    machine.create("reader", spec(true, reads)).await;
    machine.wait("reader", "done", |p| phase(p) == "Succeeded").await;
    let status = first(&machine.get("reader").await.unwrap());
    assert_eq!(status["state"]["terminated"]["message"], "knarr");
    assert_eq!(std::fs::read(&image).unwrap(), disk);
    // As a directory it cannot be had.
    let mut mounts = spec(false, "true");
    mounts["containers"][0]["volumeDevices"] = json!([]);
    mounts["containers"][0]["volumeMounts"] = json!([{"name": "disk", "mountPath": "/d"}]);
    machine.create("mounts", mounts).await;
    let begin = tokio::time::Instant::now();
    while !machine
        .events("mounts")
        .await
        .iter()
        .any(|event| event.contains("volume disk has volumeMode Block, but is specified in volumeMounts"))
    {
        assert!(
            begin.elapsed().as_secs() < 20,
            "{:?}",
            machine.events("mounts").await
        );
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    for pod in ["writer", "reader", "mounts"] {
        machine.delete(pod).await;
        machine.wait(pod, "deleted", |p| p.is_none()).await;
    }
    drop(device);
    machine.end().await;
}
