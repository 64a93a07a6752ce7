//! The wall clock is set by hours while pods run, crash, and terminate: nothing happens earlier or later for it, and
//! the node's heartbeats continue.

use k8s_openapi::jiff::SignedDuration;
use knarr_node::runtime::fake::{ContainerEvent, StopBehavior};
use parking_lot::Mutex;

use super::*;

/// A wall clock that is set.
struct SetClock {
    runs: TokioClock,
    off: Mutex<SignedDuration>,
}

impl Clock for SetClock {
    fn now(&self) -> Timestamp {
        self.runs.now() + *self.off.lock()
    }
}

/// What happens to a pod that crashes, one that heeds no TERM and one that has a deadline, in seconds since they were
/// made; the clock is set after so many.
async fn history(jump: Option<(u64, SignedDuration)>) -> Vec<String> {
    let clock = Arc::new(SetClock {
        runs: TokioClock::new(Timestamp::from_second(1_800_000_000).unwrap()),
        off: Mutex::default(),
    });
    let world = World::on(clock.clone());
    let began = Instant::now();
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let events = seen.clone();
    world.runtime.observe(move |container, happening| {
        let what = match happening {
            ContainerEvent::Started => "starts".to_string(),
            ContainerEvent::Ended(end) => format!("ends: {end:?}"),
            _ => return,
        };
        let second = began.elapsed().as_millis().div_ceil(1000);
        events
            .lock()
            .push(format!("{second:3} {} {what}", container.name));
    });
    let crashes = StopBehavior::Finishes(Duration::from_secs(2));
    world.runtime.set_stop_behavior("crashes", crashes);
    world.runtime.ignore_term("stubborn");
    let (kubelet, cancel) = world.kubelet_on_nothing();
    world.create("crashes").await;
    world.create("stubborn").await;
    world
        .create_with("expires", json!({"activeDeadlineSeconds": 50}))
        .await;
    for second in 0..120 {
        if second == 20 {
            world.delete("stubborn").await;
        }
        if let Some((at, by)) = jump
            && at == second
        {
            *clock.off.lock() += by;
        }
        sleep(Duration::from_secs(1)).await;
    }
    assert!(world.pod("stubborn").await.is_none(), "it is deleted: {jump:?}");
    let phase = world.phase("expires").await;
    assert_eq!(phase.as_deref(), Some("Failed"), "{jump:?}");
    cancel.cancel();
    kubelet.wait().await;
    let mut seen = seen.lock().clone();
    seen.sort();
    seen
}

#[tokio::test(start_paused = true)]
async fn t2_l5_l11_setting_the_clock_by_hours_terminates_and_delays_nothing() {
    let calm = history(None).await;
    assert!(
        calm.iter().filter(|what| what.contains("crashes starts")).count() >= 4,
        "{calm:#?}"
    );
    for at in [1, 3, 10, 19, 21, 35, 45, 49, 60, 90] {
        for by in [5, -5].map(SignedDuration::from_hours) {
            let jumped = history(Some((at, by))).await;
            assert_eq!(jumped, calm, "the clock was set by {by} after {at} s");
        }
    }
}
