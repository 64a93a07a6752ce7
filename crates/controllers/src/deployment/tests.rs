//! Whole rollouts: after each reconciliation the ReplicaSets' statuses are set as their controller would
//! set them, so that a rollout is a list of sizes.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{
    DeploymentCondition, DeploymentSpec, DeploymentStrategy, ReplicaSetStatus, RollingUpdateDeployment,
};
use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use knarr_apimachinery::Error;

use super::*;
use crate::action::{Create, Failure};
use crate::world::{World, at, lines, updated};

const KEY: (&str, &str) = ("default", "web");

fn labels() -> BTreeMap<String, String> {
    [("app".to_string(), "web".to_string())].into()
}

fn deployment(replicas: i32, image: &str) -> Deployment {
    Deployment {
        metadata: ObjectMeta {
            namespace: Some("default".into()),
            name: Some("web".into()),
            generation: Some(1),
            ..ObjectMeta::default()
        },
        spec: Some(DeploymentSpec {
            replicas: Some(replicas),
            revision_history_limit: Some(10),
            progress_deadline_seconds: Some(600),
            selector: LabelSelector {
                match_labels: Some(labels()),
                ..LabelSelector::default()
            },
            strategy: Some(DeploymentStrategy {
                type_: Some("RollingUpdate".into()),
                rolling_update: None,
            }),
            template: template(image),
            ..DeploymentSpec::default()
        }),
        status: None,
    }
}

fn template(image: &str) -> PodTemplateSpec {
    PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(labels()),
            ..ObjectMeta::default()
        }),
        spec: Some(PodSpec {
            containers: vec![Container {
                name: "c".into(),
                image: Some(image.into()),
                ..Container::default()
            }],
            ..PodSpec::default()
        }),
    }
}

/// A Deployment, with the ReplicaSet controller and the kubelet in one.
struct Fixture {
    world: World,
    second: i64,
    /// Pods of these images never become ready.
    broken: &'static str,
    events: Vec<String>,
}

impl Fixture {
    fn new(deployment: Deployment) -> Self {
        let mut world = World::default();
        world.put(deployment);
        Fixture {
            world,
            second: 0,
            broken: "",
            events: Vec::new(),
        }
    }

    fn view(&self) -> &dyn View {
        &self.world
    }

    fn deployment(&self) -> Deployment {
        (*self.view().get_as::<Deployment>(KEY.0, KEY.1).unwrap()).clone()
    }

    fn edit(&mut self, edit: impl FnOnce(&mut DeploymentSpec)) {
        let mut deployment = self.deployment();
        edit(deployment.spec.as_mut().unwrap());
        let generation = &mut deployment.metadata.generation;
        *generation = generation.map(|g| g + 1);
        self.world.put(deployment);
    }

    fn sets(&self) -> Vec<Shared<ReplicaSet>> {
        let mut sets = self.view().list_as::<ReplicaSet>(KEY.0);
        sets.sort_by_key(|s| s.metadata.creation_timestamp.clone());
        sets
    }

    /// Image and size of each set, the oldest first.
    fn sizes(&self) -> Vec<String> {
        let size = |set: &Shared<ReplicaSet>| {
            let spec = set.spec.clone().unwrap();
            let image = spec.template.unwrap().spec.unwrap().containers[0].image.clone();
            format!("{}={}", image.unwrap(), spec.replicas.unwrap())
        };
        self.sets().iter().map(size).collect()
    }

    fn condition(&self, type_: &str) -> DeploymentCondition {
        let conditions = self.deployment().status.unwrap().conditions.unwrap();
        conditions.into_iter().find(|c| c.type_ == type_).unwrap()
    }

    fn reason(&self, type_: &str) -> String {
        self.condition(type_).reason.unwrap()
    }

    /// One reconciliation, with its writes applied. What it did, without the status.
    fn decide(&mut self) -> Vec<Action> {
        self.second += 1;
        let actions = self.world.run(&Deployments, KEY, at(self.second));
        self.world.take_updates(&actions);
        for action in &actions {
            match action {
                Action::Create(Create { object, .. }) => {
                    let mut set: ReplicaSet = object.as_any().downcast_ref::<ReplicaSet>().unwrap().clone();
                    set.metadata.creation_timestamp = Some(Time(at(self.second)));
                    self.world.put(set);
                }
                Action::Delete(d) => self.world.remove(&d.kind, &d.key.namespace, &d.key.name),
                Action::Event { message, .. } => self.events.push(message.clone()),
                _ => {}
            }
        }
        actions
    }

    /// Makes all pods run and be ready.
    fn settle(&mut self) {
        for set in self.sets() {
            let mut set = (*set).clone();
            let spec = set.spec.clone().unwrap();
            let replicas = spec.replicas.unwrap();
            let image = spec.template.unwrap().spec.unwrap().containers[0]
                .image
                .clone()
                .unwrap();
            let ready = if image == self.broken { 0 } else { replicas };
            set.status = Some(ReplicaSetStatus {
                replicas,
                ready_replicas: Some(ready),
                available_replicas: Some(ready),
                terminating_replicas: Some(0),
                ..ReplicaSetStatus::default()
            });
            self.world.put(set);
        }
    }

    /// Reconciles until nothing is left to do; the sizes after each step that changed them.
    fn run(&mut self) -> Vec<String> {
        let mut history: Vec<String> = Vec::new();
        for _ in 0..100 {
            let actions = self.decide();
            let sizes = self.sizes().join(" ");
            if history.last() != Some(&sizes) {
                history.push(sizes);
            }
            self.settle();
            if actions.iter().all(|a| matches!(a, Action::RequeueAfter(_))) {
                return history;
            }
        }
        panic!("it never settles: {history:?}");
    }
}

#[test]
fn a_new_deployment_gets_one_set_of_its_size_and_becomes_available() {
    let mut fixture = Fixture::new(deployment(3, "v1"));
    let actions = fixture.decide();
    let hash = template::hash(&template("v1"), 0);
    assert_eq!(
        lines(&actions),
        [
            format!("create replicasets default/web-{hash}"),
            format!("event ScalingReplicaSet: Scaled up replica set web-{hash} from 0 to 3"),
            "update deployments/status default/web".to_string(),
            "requeue after 601s".to_string(),
        ]
    );
    assert_eq!(fixture.reason("Progressing"), "NewReplicaSetCreated");
    assert_eq!(fixture.reason("Available"), "MinimumReplicasUnavailable");
    let set = fixture.sets().remove(0);
    let spec = set.spec.clone().unwrap();
    assert_eq!(spec.selector.match_labels.unwrap()["pod-template-hash"], hash);
    assert_eq!(
        spec.template.unwrap().metadata.unwrap().labels.unwrap()["pod-template-hash"],
        hash
    );
    let annotations = set.metadata.annotations.clone().unwrap();
    assert_eq!(annotations["deployment.kubernetes.io/revision"], "1");
    assert_eq!(annotations["deployment.kubernetes.io/desired-replicas"], "3");
    assert_eq!(annotations["deployment.kubernetes.io/max-replicas"], "4");

    fixture.settle();
    fixture.run();
    assert_eq!(fixture.reason("Progressing"), "NewReplicaSetAvailable");
    assert_eq!(fixture.reason("Available"), "MinimumReplicasAvailable");
    let status = fixture.deployment().status.unwrap();
    assert_eq!(status.replicas, Some(3));
    assert_eq!(
        (status.updated_replicas, status.ready_replicas),
        (Some(3), Some(3))
    );
    assert_eq!(
        (status.available_replicas, status.unavailable_replicas),
        (Some(3), None)
    );
    assert_eq!(status.observed_generation, Some(1));
    let revision = &fixture.deployment().metadata.annotations.unwrap()[REVISION];
    assert_eq!(revision, "1");
}

#[test]
fn a_rolling_update_stays_within_max_surge_and_max_unavailable() {
    let rolling_update = |surge, unavailable| RollingUpdateDeployment {
        max_surge: Some(IntOrString::Int(surge)),
        max_unavailable: Some(IntOrString::Int(unavailable)),
    };
    let table: [(RollingUpdateDeployment, &[&str]); 3] = [
        (
            rolling_update(1, 0),
            &[
                "v1=3 v2=1",
                "v1=2 v2=1",
                "v1=2 v2=2",
                "v1=1 v2=2",
                "v1=1 v2=3",
                "v1=0 v2=3",
            ],
        ),
        (
            rolling_update(0, 1),
            &[
                "v1=2 v2=0",
                "v1=2 v2=1",
                "v1=1 v2=1",
                "v1=1 v2=2",
                "v1=0 v2=2",
                "v1=0 v2=3",
            ],
        ),
        (rolling_update(3, 3), &["v1=0 v2=3"]),
    ];
    for (rolling, expected) in table {
        let mut fixture = Fixture::new(deployment(3, "v1"));
        fixture.run();
        fixture.edit(|spec| {
            spec.template = template("v2");
            spec.strategy.as_mut().unwrap().rolling_update = Some(rolling.clone());
        });
        assert_eq!(fixture.run(), expected, "{rolling:?}");
        assert_eq!(fixture.reason("Progressing"), "NewReplicaSetAvailable");
    }
}

#[test]
fn percentages_round_surge_up_and_unavailable_down() {
    let table = [
        // replicas, surge, unavailable, in pods
        (10, "25%", "25%", (3, 2)),
        (1, "25%", "25%", (1, 0)),
        (4, "0%", "10%", (0, 1)),
        (0, "25%", "25%", (0, 0)),
        (3, "100%", "100%", (3, 3)),
    ];
    for (replicas, surge, unavailable, expected) in table {
        let mut spec = deployment(replicas, "v1").spec.unwrap();
        spec.strategy.as_mut().unwrap().rolling_update = Some(RollingUpdateDeployment {
            max_surge: Some(IntOrString::String(surge.into())),
            max_unavailable: Some(IntOrString::String(unavailable.into())),
        });
        let bounds = rollout_bounds::rollout_bounds(&spec);
        assert_eq!(
            (bounds.surge, bounds.unavailable),
            expected,
            "{replicas} {surge} {unavailable}"
        );
    }
}

#[test]
fn recreate_creates_new_pods_only_when_the_old_ones_are_removed() {
    let mut fixture = Fixture::new(deployment(2, "v1"));
    fixture.edit(|spec| {
        spec.strategy = Some(DeploymentStrategy {
            type_: Some("Recreate".into()),
            rolling_update: None,
        });
    });
    fixture.run();
    fixture.edit(|spec| spec.template = template("v2"));
    fixture.decide();
    assert_eq!(fixture.sizes(), ["v1=0"]);
    fixture.decide();
    assert_eq!(
        fixture.sizes(),
        ["v1=0"],
        "the old set's status still counts pods"
    );
    fixture.settle();
    assert_eq!(fixture.run(), ["v1=0 v2=2"]);
}

#[test]
fn a_rollback_uses_the_old_set_again_under_a_new_revision() {
    let mut fixture = Fixture::new(deployment(1, "v1"));
    fixture.run();
    fixture.edit(|spec| spec.template = template("v2"));
    fixture.run();
    fixture.edit(|spec| spec.template = template("v1"));
    fixture.run();
    assert_eq!(fixture.sizes(), ["v1=1", "v2=0"]);
    let annotations = fixture.sets()[0].metadata.annotations.clone().unwrap();
    assert_eq!(annotations["deployment.kubernetes.io/revision"], "3");
    assert_eq!(annotations["deployment.kubernetes.io/revision-history"], "1");
    assert_eq!(fixture.deployment().metadata.annotations.unwrap()[REVISION], "3");
}

#[test]
fn a_paused_deployment_keeps_its_template_but_is_scaled() {
    let mut fixture = Fixture::new(deployment(2, "v1"));
    fixture.run();
    fixture.edit(|spec| {
        spec.paused = Some(true);
        spec.template = template("v2");
    });
    assert_eq!(fixture.run(), ["v1=2"]);
    assert_eq!(fixture.reason("Progressing"), "DeploymentPaused");
    assert_eq!(fixture.condition("Progressing").status, "Unknown");
    fixture.edit(|spec| spec.replicas = Some(5));
    assert_eq!(fixture.run(), ["v1=5"]);
    fixture.edit(|spec| spec.paused = None);
    assert_eq!(fixture.run().last().unwrap(), "v1=0 v2=5");
    assert_eq!(fixture.reason("Progressing"), "NewReplicaSetAvailable");
}

#[test]
fn scaling_during_a_rollout_keeps_the_sets_proportions() {
    let mut fixture = Fixture::new(deployment(10, "v1"));
    fixture.broken = "v2";
    fixture.edit(|spec| {
        spec.strategy.as_mut().unwrap().rolling_update = Some(RollingUpdateDeployment {
            max_surge: Some(IntOrString::Int(3)),
            max_unavailable: Some(IntOrString::Int(2)),
        });
    });
    fixture.run();
    fixture.edit(|spec| spec.template = template("v2"));
    fixture.run();
    assert_eq!(fixture.sizes(), ["v1=8", "v2=5"]);
    // Kubernetes' documented example of proportional scaling: 5 more pods are distributed 3 to 2.
    fixture.edit(|spec| spec.replicas = Some(15));
    fixture.decide();
    assert_eq!(fixture.sizes(), ["v1=11", "v2=7"]);
    fixture.settle();
    fixture.edit(|spec| spec.replicas = Some(0));
    assert_eq!(fixture.run().last().unwrap(), "v1=0 v2=0");
}

#[test]
fn missing_progress_is_reported_after_the_deadline() {
    let mut fixture = Fixture::new(deployment(2, "v1"));
    fixture.run();
    fixture.broken = "v2";
    fixture.edit(|spec| spec.template = template("v2"));
    fixture.run();
    assert_eq!(fixture.reason("Progressing"), "ReplicaSetUpdated");
    let waits = fixture.decide();
    let wait = waits.iter().find_map(|a| match a {
        Action::RequeueAfter(wait) => Some(wait.as_secs()),
        _ => None,
    });
    assert!(wait.is_some_and(|w| (590..=601).contains(&w)), "{wait:?}");
    fixture.second += 601;
    fixture.decide();
    let condition = fixture.condition("Progressing");
    assert_eq!(condition.reason.as_deref(), Some("ProgressDeadlineExceeded"));
    assert_eq!(condition.status, "False");
    let name = fixture.sets()[1].metadata.name.clone().unwrap();
    assert_eq!(
        condition.message,
        Some(format!("ReplicaSet \"{name}\" has timed out progressing."))
    );
    assert_eq!(fixture.reason("Available"), "MinimumReplicasAvailable");
}

#[test]
fn old_sets_beyond_the_history_limit_are_deleted_the_oldest_first() {
    let mut fixture = Fixture::new(deployment(1, "v1"));
    fixture.edit(|spec| spec.revision_history_limit = Some(2));
    for image in ["v1", "v2", "v3", "v4", "v5"] {
        fixture.edit(|spec| spec.template = template(image));
        fixture.run();
    }
    assert_eq!(fixture.sizes(), ["v3=0", "v4=0", "v5=1"]);
}

/// The cache of a controller may be old, and the set be scaled up again by a rollback.
#[test]
fn an_old_set_is_deleted_only_at_the_version_that_has_no_pods() {
    let mut fixture = Fixture::new(deployment(1, "v1"));
    fixture.run();
    fixture.edit(|spec| spec.template = template("v2"));
    fixture.run();
    fixture.edit(|spec| spec.revision_history_limit = Some(0));
    let version = fixture.sets()[0].metadata.resource_version.clone();
    let mut actions = (0..5).flat_map(|_| fixture.decide());
    let deleted = actions.find_map(|action| match action {
        Action::Delete(delete) => Some(delete.resource_version),
        _ => None,
    });
    assert!(version.is_some());
    assert_eq!(deleted, Some(version));
}

#[test]
fn a_set_that_cannot_be_created_is_reported_as_not_progressing() {
    let mut fixture = Fixture::new(deployment(1, "v1"));
    let failure = Failure {
        verb: Verb::Create,
        kind: registry::REPLICA_SET.clone(),
        name: "web-x".into(),
        error: Error::forbidden(registry::REPLICA_SET.resource_ref("web-x"), "quota"),
    };
    let actions = fixture.world.run_after(&Deployments, KEY, at(1), Some(&failure));
    assert_eq!(lines(&actions), ["update deployments/status default/web"]);
    fixture.world.take_updates(&actions);
    assert_eq!(fixture.reason("Progressing"), "ReplicaSetCreateError");
    assert_eq!(fixture.condition("Progressing").status, "False");
    fixture.run();
    assert_eq!(fixture.reason("Progressing"), "NewReplicaSetAvailable");
}

#[test]
fn a_hash_collision_raises_the_collision_count() {
    let mut fixture = Fixture::new(deployment(1, "v1"));
    let mut other = ReplicaSet::default();
    other.metadata.namespace = Some("default".into());
    other.metadata.name = Some(format!("web-{}", template::hash(&template("v1"), 0)));
    other.metadata.owner_references = Some(vec![
        k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference {
            controller: Some(true),
            uid: "another".into(),
            ..Default::default()
        },
    ]);
    fixture.world.put(other);
    let first = fixture.decide();
    let status = updated::<Deployment>(&first, "status").unwrap().status.unwrap();
    assert_eq!(status.collision_count, Some(1));
    let second = fixture.decide();
    let expected = format!(
        "create replicasets default/web-{}",
        template::hash(&template("v1"), 1)
    );
    assert_eq!(lines(&second)[0], expected);
}
