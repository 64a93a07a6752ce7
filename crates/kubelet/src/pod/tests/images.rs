//! Images that are missing, are pulled late, or change.

use super::*;

/// A pod whose image pull has just failed.
fn without_image() -> Life {
    let mut life = Life::new(json!({}));
    life.step(Event::Timer);
    while let Some((at, event)) = life.open.iter().enumerate().find_map(|(at, a)| match a {
        Action::InspectImage { container, .. } => Some((
            at,
            Event::ImageInspected {
                container: container.clone(),
                present: Ok(false),
            },
        )),
        Action::PullImage { .. } => None,
        other => Some((at, life.success_event(other)?)),
    }) {
        life.give(at, event);
    }
    let pull = life
        .open
        .iter()
        .position(|a| matches!(a, Action::PullImage { .. }))
        .unwrap();
    let result = Err(ActionError::new("rpc error"));
    life.give(
        pull,
        Event::ImagePulled {
            container: "c".into(),
            result,
        },
    );
    assert_eq!(life.status(), "Pending c=ErrImagePull/0");
    life
}

fn with_image(life: &mut Life, image: &str) {
    life.object.spec.as_mut().unwrap().containers[0].image = Some(image.into());
    life.step(Event::Updated(Arc::new(life.object.clone())));
    life.settle();
}

#[test]
fn l5_another_image_does_not_wait_for_the_back_off_of_the_one_before() {
    let mut life = without_image();
    life.wait(5);
    with_image(&mut life, "busybox");
    assert_eq!(life.status(), "Pending c=ErrImagePull/0", "nothing has changed");
    with_image(&mut life, "other");
    assert_eq!(life.status(), "Running c=running/0");
    life.exit("c0", 1);
    life.exit("c1", 1);
    life.wait(9);
    assert_eq!(life.status(), "Running c=CrashLoopBackOff/1");
    with_image(&mut life, "mended");
    assert_eq!(life.status(), "Running c=running/2");
}

#[test]
fn l4_pulls_fail_back_off_and_are_tried_again() {
    let mut life = without_image();
    life.wait(9);
    assert_eq!(life.status(), "Pending c=ImagePullBackOff/0");
    let log = life.take_log();
    for expected in [
        "event Pulling: Pulling image \"busybox\"",
        "event !Failed: Failed to pull image \"busybox\": rpc error",
        "event !Failed: Error: ErrImagePull",
        "event BackOff: Back-off pulling image \"busybox\"",
        "event !Failed: Error: ImagePullBackOff",
    ] {
        assert!(log.contains(&expected.to_string()), "{expected}: {log:#?}");
    }
    life.wait(1);
    assert_eq!(life.status(), "Running c=running/0", "10 s later it is retried");
}

#[test]
fn l4_a_pod_deleted_before_anything_ran_is_failed() {
    let mut life = Life::new(json!({}));
    life.step(Event::Timer);
    let setup = life.open.remove(0);
    assert_eq!(setup, Action::SetUpVolumes);
    life.step(Event::VolumesFailed {
        reason: "FailedMount",
        message: "MountVolume.SetUp failed".into(),
        is_external: false,
    });
    life.delete(30);
    assert_eq!(life.status(), "Failed c=ContainerStatusUnknown:137/0");
    assert_eq!(life.log.last().unwrap(), "delete");
}

#[test]
fn an_image_change_restarts_the_container() {
    let mut life = Life::new(json!({}));
    life.settle();
    life.object.spec.as_mut().unwrap().containers[0].image = Some("other".into());
    life.step(Event::Updated(Arc::new(life.object.clone())));
    assert!(
        life.log
            .contains(&"event Killing: Container c definition changed, will be restarted".to_string())
    );
    life.exit("c0", 0);
    assert_eq!(life.status(), "Running c=running/1");
}

#[test]
fn the_hash_of_a_definition_is_the_same_in_every_version() {
    let hash = |name: &str, image: Option<&str>| {
        definition_hash(&core::Container {
            name: name.into(),
            image: image.map(str::to_string),
            ..core::Container::default()
        })
    };
    // FNV-1a of the name, a zero and the image. The runtime keeps it with the container.
    assert_eq!(hash("c", Some("busybox")), "7e10d644");
    assert_ne!(hash("c", None), hash("c", Some("busybox")));
    assert_ne!(hash("d", Some("busybox")), hash("c", Some("busybox")));
}
