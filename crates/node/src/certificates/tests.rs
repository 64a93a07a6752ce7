//! Runs against the API in memory, where a task signs every request.

use super::*;
use futures::StreamExt;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use knarr_api::registry::CERTIFICATE_SIGNING_REQUEST;
use knarr_client::fake::FakeApi;
use knarr_client::{TokioClock, TypedApi, WatchEvent, WatchOptions};
use rand::SeedableRng;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How long certificates last here.
const LIFE: Duration = Duration::from_secs(60);

struct World {
    directory: tempfile::TempDir,
    api: Arc<FakeApi>,
    clock: Arc<TokioClock>,
}

impl World {
    fn new() -> Self {
        let clock = Arc::new(TokioClock::new("2030-01-01T00:00:00Z".parse().unwrap()));
        World {
            directory: tempfile::tempdir().unwrap(),
            api: Arc::new(FakeApi::new(clock.clone())),
            clock,
        }
    }

    fn rotation(&self) -> Rotation {
        let file = self.directory.path().join("pki/current.pem");
        let template = serving("n", &["10.0.0.1".to_string()]);
        Rotation::open(template, file, self.clock.clone(), StdRng::seed_from_u64(1)).unwrap()
    }

    /// Answers every request as `answer` does.
    fn answer(&self, answer: impl Fn(&mut CertificateSigningRequest, Timestamp) + Send + 'static) {
        let (api, clock) = (self.api.clone(), self.clock.clone());
        tokio::spawn(async move {
            let all = WatchOptions::default();
            let mut events = api.watch(&CERTIFICATE_SIGNING_REQUEST, all).await.unwrap();
            while let Some(Ok(event)) = events.next().await {
                if let WatchEvent::Added(object) = event {
                    let mut request = object.get::<CertificateSigningRequest>().unwrap().clone();
                    answer(&mut request, clock.now());
                    api.update_status_as(request).await.unwrap();
                }
            }
        });
    }
}

fn sign(request: &mut CertificateSigningRequest, now: Timestamp) {
    use rcgen::{CertificateParams, CertificateSigningRequestParams, Issuer, KeyPair};
    let text = String::from_utf8(request.spec.request.0.clone()).unwrap();
    let mut request_params = CertificateSigningRequestParams::from_pem(&text).unwrap();
    let at = |t: Timestamp| {
        rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(u64::try_from(t.as_second()).unwrap())
    };
    // Dated back, as signers do.
    request_params.params.not_before = at(now - Duration::from_secs(300));
    request_params.params.not_after = at(now + LIFE);
    let issuer = Issuer::new(CertificateParams::default(), KeyPair::generate().unwrap());
    let signed = request_params.signed_by(&issuer).unwrap().pem();
    request.status.get_or_insert_default().certificate = Some(ByteString(signed.into_bytes()));
}

#[tokio::test(start_paused = true)]
async fn a_certificate_is_readable_by_its_owner_only_and_loaded_again() {
    let world = World::new();
    world.answer(sign);
    let mut rotation = world.rotation();
    assert_eq!(rotation.current(), None);
    let identity = rotation.ask(&*world.api).await.unwrap().clone();
    let file = world.directory.path().join("pki/current.pem");
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(std::fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
    assert_eq!(world.rotation().current(), Some(&identity));
    let current = file::describe(&identity, world.clock.now()).unwrap();
    assert!(current.matches(&serving("n", &["10.0.0.1".to_string()])));

    // A certificate for another name, or an invalid one, is not loaded.
    let other = Rotation::open(
        client("m"),
        file.clone(),
        world.clock.clone(),
        StdRng::seed_from_u64(1),
    );
    assert_eq!(other.unwrap().current(), None);
    std::fs::write(&file, identity.certificate_pem).unwrap();
    assert_eq!(world.rotation().current(), None);
}

#[tokio::test(start_paused = true)]
async fn it_is_rotated_before_each_expiry() {
    let world = World::new();
    world.answer(sign);
    let cancel = CancellationToken::new();
    let taken = Arc::new(AtomicUsize::new(0));
    let (counter, clock) = (taken.clone(), world.clock.clone());
    let ends = Arc::new(parking_lot::Mutex::new(Timestamp::MAX));
    let previous = ends.clone();
    let take = move |identity: &Identity| {
        let current = file::describe(identity, clock.now()).map_err(|e| e.to_string())?;
        let before = std::mem::replace(&mut *previous.lock(), current.until);
        counter.fetch_add(1, Ordering::Relaxed);
        // In time, that is.
        if clock.now() < before {
            Ok(())
        } else {
            Err("too late".to_string())
        }
    };
    let running = tokio::spawn(
        world
            .rotation()
            .run(world.api.clone(), None, take, cancel.clone()),
    );
    tokio::time::sleep(LIFE * 10).await;
    cancel.cancel();
    running.await.unwrap();
    // Ten lives, each used for 70 to 90 percent.
    let taken = taken.load(Ordering::Relaxed);
    assert!((11..=15).contains(&taken), "{taken}");
    assert_eq!(
        world.api.requests().iter().filter(|r| r.verb == "create").count(),
        taken
    );
}

#[tokio::test(start_paused = true)]
async fn a_denial_is_reported_with_the_approvers_message() {
    let world = World::new();
    world.answer(|request, _| {
        let condition = CertificateSigningRequestCondition {
            type_: "Failed".into(),
            status: "True".into(),
            message: Some("not this node".into()),
            ..CertificateSigningRequestCondition::default()
        };
        request.status.get_or_insert_default().conditions = Some(vec![condition]);
    });
    let error = world.rotation().ask(&*world.api).await.unwrap_err().to_string();
    assert!(error.ends_with("was not signed: not this node"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_node_without_a_valid_certificate_requests_one_as_at_bootstrap() {
    let world = World::new();
    world.answer(sign);
    let mut rotation = world.rotation();
    rotation.ask(&*world.api).await.unwrap();
    // The node is away for longer than its certificate lasts.
    tokio::time::sleep(LIFE * 2).await;
    let bootstrap = world.api.clone();
    let dead = Arc::new(FakeApi::new(world.clock.clone()));
    dead.intercept(|_| Some(knarr_apimachinery::Error::unauthorized()));
    let cancel = CancellationToken::new();
    let (sender, mut renewed) = tokio::sync::mpsc::unbounded_channel();
    let take = move |_: &Identity| sender.send(()).map_err(|e| e.to_string());
    tokio::spawn(rotation.run(dead.clone(), Some(bootstrap), take, cancel.clone()));
    renewed.recv().await.unwrap();
    cancel.cancel();
    assert!(dead.requests().is_empty());
}
