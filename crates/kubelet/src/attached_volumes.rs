//! The attached volumes that pods of this node use, and those that are staged on it: one record of both (SPEC S7). The last
//! pod that leaves a volume has it unstaged, whatever that pod itself did with it, and the attachment is released after that
//! and never before. As in kubelet, where `status.volumesInUse` names a volume until UnmountDevice has succeeded.

use std::collections::{BTreeMap, BTreeSet};

use knarr_apimachinery::ids::PodUid;

/// By attachment. `S` is what is needed to unstage a volume.
#[derive(Debug, Default)]
pub struct AttachedVolumes<S>(BTreeMap<String, AttachedVolume<S>>);

#[derive(Debug)]
struct AttachedVolume<S> {
    /// Its name; a CSI driver's by its name in the node's status.
    volume: String,
    users: BTreeSet<PodUid>,
    /// Of a volume without users: the one that left last, whose teardown ends its use. None if that was under an earlier
    /// kubelet.
    last_user: Option<PodUid>,
    /// Since before it began to be staged.
    staged: Option<S>,
    /// The last write that takes it into use did not succeed, or was of a kubelet that has died: it may have been done,
    /// or be done later.
    in_doubt: bool,
}

/// What is to be done about a volume without users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Unstage { attachment: String },
    Release { attachment: String },
}

impl<S> AttachedVolume<S> {
    fn new(volume: &str) -> Self {
        AttachedVolume {
            volume: volume.into(),
            users: BTreeSet::new(),
            last_user: None,
            staged: None,
            in_doubt: false,
        }
    }

    fn is_releasable(&self) -> bool {
        self.users.is_empty() && self.staged.is_none()
    }
}

impl<S> AttachedVolumes<S> {
    fn volume(&mut self, attachment: &str, volume: &str) -> &mut AttachedVolume<S> {
        let known = self.0.entry(attachment.to_string());
        known.or_insert_with(|| AttachedVolume::new(volume))
    }

    /// A pod takes it into use: from before the write that does so, or by what an earlier kubelet noted.
    pub fn take(&mut self, attachment: &str, volume: &str, uid: &PodUid) {
        let taken = self.volume(attachment, volume);
        taken.volume = volume.into();
        taken.users.insert(uid.clone());
        (taken.last_user, taken.in_doubt) = (None, true);
    }

    /// The write that takes it into use has succeeded.
    pub fn taken(&mut self, attachment: &str) {
        if let Some(taken) = self.0.get_mut(attachment) {
            taken.in_doubt = false;
        }
    }

    /// Before a pod stages it: the volume's name, or none for a pod that does not use it (any more), which must not.
    pub fn stage(&mut self, attachment: &str, uid: &PodUid, by: S) -> Option<&str> {
        let used = self.0.get_mut(attachment)?;
        if !used.users.contains(uid) {
            return None;
        }
        used.staged = Some(by);
        Some(&used.volume)
    }

    /// By what an earlier kubelet noted.
    pub fn recovered_staged(&mut self, attachment: &str, volume: &str, by: S) {
        let known = self.volume(attachment, volume);
        if known.staged.is_none() {
            known.staged = Some(by);
        }
    }

    /// A pod has none of its volumes mounted any more.
    pub fn leave(&mut self, uid: &PodUid) {
        for volume in self.0.values_mut() {
            if volume.users.remove(uid) && volume.users.is_empty() {
                volume.last_user = Some(uid.clone());
            }
        }
    }

    /// The next step for each volume without users that this pod left last; without a pod, that were left under an earlier
    /// kubelet.
    pub fn steps(&self, last_user: Option<&PodUid>) -> Vec<Step> {
        let unused = self.0.iter().filter(|(_, volume)| {
            let left = volume.last_user.as_ref();
            volume.users.is_empty() && left == last_user
        });
        let step = |(attachment, volume): (&String, &AttachedVolume<S>)| {
            let attachment = attachment.clone();
            match volume.staged {
                Some(_) => Step::Unstage { attachment },
                None => Step::Release { attachment },
            }
        };
        unused.map(step).collect()
    }

    /// What it was staged by, if it is to be unstaged.
    pub fn to_unstage(&self, attachment: &str) -> Option<&S> {
        let unused = self.0.get(attachment).filter(|volume| volume.users.is_empty());
        unused?.staged.as_ref()
    }

    pub fn unstaged(&mut self, attachment: &str) {
        if let Some(volume) = self.0.get_mut(attachment) {
            volume.staged = None;
        }
    }

    /// Whether no pod uses it, and it is not staged.
    pub fn is_releasable(&self, attachment: &str) -> bool {
        self.0.get(attachment).is_some_and(AttachedVolume::is_releasable)
    }

    /// The last user of a volume without users, if its write that takes the volume into use may still arrive.
    pub fn in_doubt(&self, attachment: &str) -> Option<&PodUid> {
        let volume = self.0.get(attachment).filter(|volume| volume.in_doubt);
        volume?.last_user.as_ref()
    }

    /// The attachment has been released.
    pub fn released(&mut self, attachment: &str) {
        if self.is_releasable(attachment) {
            self.0.remove(attachment);
        }
    }

    /// Whether this node has not released the attachment yet.
    pub fn contains(&self, attachment: &str) -> bool {
        self.0.contains_key(attachment)
    }

    pub fn is_user(&self, attachment: &str, uid: &str) -> bool {
        self.0
            .get(attachment)
            .is_some_and(|volume| volume.users.contains(uid))
    }

    /// Whether this pod uses one, or is the last that did and it has not been released yet.
    pub fn uses(&self, uid: &str) -> bool {
        let of_pod = |volume: &AttachedVolume<S>| {
            let left = volume.last_user.as_deref();
            volume.users.contains(uid) || left == Some(uid)
        };
        self.0.values().any(of_pod)
    }

    /// The names of those that are used or staged (`status.volumesInUse`).
    pub fn in_use(&self) -> impl Iterator<Item = &str> {
        self.0.values().map(|volume| volume.volume.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ATTACHMENT: &str = "csi-1";

    /// Of the pods of these uids, and of the driver.
    #[derive(Clone, Copy, Debug)]
    enum Event {
        Take(&'static str),
        /// Whether the pod may.
        Stage(&'static str, bool),
        Leave(&'static str),
        Unstaged,
        Released,
        /// Another kubelet starts, which knows the pods with a directory.
        Restart(&'static [&'static str]),
    }

    use Event::{Leave, Released, Restart, Stage, Take, Unstaged};

    fn step(volumes: &mut AttachedVolumes<()>, event: Event) {
        match event {
            Take(uid) => {
                volumes.take(ATTACHMENT, "v", &uid.into());
                volumes.taken(ATTACHMENT);
            }
            Stage(uid, may) => {
                let staged = volumes.stage(ATTACHMENT, &uid.into(), ()).map(str::to_string);
                assert_eq!(staged.is_some(), may, "{uid}");
            }
            Leave(uid) => volumes.leave(&uid.into()),
            Unstaged => {
                assert!(volumes.to_unstage(ATTACHMENT).is_some());
                volumes.unstaged(ATTACHMENT);
            }
            Released => volumes.released(ATTACHMENT),
            Restart(uids) => {
                let before = std::mem::take(volumes);
                if before.0.get(ATTACHMENT).is_some_and(|v| v.staged.is_some()) {
                    volumes.recovered_staged(ATTACHMENT, "v", ());
                }
                for uid in uids {
                    volumes.take(ATTACHMENT, "v", &(*uid).into());
                }
            }
        }
    }

    /// The step that is next, for the pod or for an earlier kubelet.
    fn shown(volumes: &AttachedVolumes<()>) -> Vec<&'static str> {
        let (one, two) = (PodUid::from("one"), PodUid::from("two"));
        let pods = [("", None), ("one ", Some(&one)), ("two ", Some(&two))];
        let mut shown = Vec::new();
        for (pod, uid) in pods {
            for step in volumes.steps(uid) {
                shown.push(match (pod, step) {
                    ("one ", Step::Unstage { .. }) => "one unstages",
                    ("one ", Step::Release { .. }) => "one releases",
                    ("two ", Step::Unstage { .. }) => "two unstages",
                    ("two ", Step::Release { .. }) => "two releases",
                    (_, Step::Unstage { .. }) => "unstage",
                    (_, Step::Release { .. }) => "release",
                });
            }
        }
        shown
    }

    #[test]
    fn s7_the_last_pod_that_leaves_unstages_and_then_releases_whatever_the_order() {
        let both = [Take("one"), Take("two")];
        let table: [(&str, Vec<Event>, &[&str]); 18] = [
            ("a pod uses it", vec![Take("one"), Stage("one", true)], &[]),
            (
                "it never staged",
                vec![Take("one"), Leave("one")],
                &["one releases"],
            ),
            (
                "then one leaves that did not use it",
                vec![Take("one"), Leave("one"), Leave("two")],
                &["one releases"],
            ),
            (
                "its only user left",
                vec![Take("one"), Stage("one", true), Leave("one")],
                &["one unstages"],
            ),
            (
                "it is unstaged",
                vec![Take("one"), Stage("one", true), Leave("one"), Unstaged],
                &["one releases"],
            ),
            (
                "it is released",
                vec![Take("one"), Stage("one", true), Leave("one"), Unstaged, Released],
                &[],
            ),
            (
                "a release before it is unstaged is none",
                vec![Take("one"), Stage("one", true), Leave("one"), Released],
                &["one unstages"],
            ),
            (
                "another pod uses it",
                [&both[..], &[Stage("one", true), Leave("one")]].concat(),
                &[],
            ),
            (
                "both left at once, and only the first had it staged",
                [&both[..], &[Stage("one", true), Leave("one"), Leave("two")]].concat(),
                &["two unstages"],
            ),
            (
                "the other way round",
                [&both[..], &[Stage("one", true), Leave("two"), Leave("one")]].concat(),
                &["one unstages"],
            ),
            (
                "a pod with the same claim came before it was unstaged",
                vec![Take("one"), Stage("one", true), Leave("one"), Take("two")],
                &[],
            ),
            (
                "that pod left without staging it",
                vec![
                    Take("one"),
                    Stage("one", true),
                    Leave("one"),
                    Take("two"),
                    Leave("two"),
                ],
                &["two unstages"],
            ),
            (
                "that pod came between unstaging and release, and staged it again",
                vec![
                    Take("one"),
                    Stage("one", true),
                    Leave("one"),
                    Unstaged,
                    Take("two"),
                    Stage("two", true),
                    Released,
                    Leave("two"),
                ],
                &["two unstages"],
            ),
            (
                "a mount in flight of a pod that left",
                vec![Take("one"), Leave("one"), Stage("one", false)],
                &["one releases"],
            ),
            (
                "a mount in flight of a pod that left, after another one's",
                [
                    &both[..],
                    &[
                        Stage("two", true),
                        Leave("one"),
                        Stage("one", false),
                        Leave("two"),
                    ],
                ]
                .concat(),
                &["two unstages"],
            ),
            (
                "the kubelet was killed before it unstaged, and the pod's directory is there",
                vec![
                    Take("one"),
                    Stage("one", true),
                    Leave("one"),
                    Restart(&["one"]),
                    Leave("one"),
                ],
                &["one unstages"],
            ),
            (
                "the same, and the pod's directory was removed",
                vec![Take("one"), Stage("one", true), Restart(&[])],
                &["unstage"],
            ),
            (
                "a kubelet was killed while two pods used it, and the one that had it staged was gone",
                [
                    &both[..],
                    &[Stage("one", true), Leave("one"), Restart(&["two"]), Leave("two")],
                ]
                .concat(),
                &["two unstages"],
            ),
        ];
        for (what, events, expected) in table {
            let mut volumes = AttachedVolumes::default();
            events.into_iter().for_each(|event| step(&mut volumes, event));
            assert_eq!(shown(&volumes), expected, "{what}");
        }
    }

    #[test]
    fn s7_what_is_staged_is_in_use_and_its_attachment_kept_in_every_order_of_events() {
        let events = [
            Take("one"),
            Take("two"),
            Leave("one"),
            Leave("two"),
            Unstaged,
            Released,
            Stage("one", true),
            Stage("two", true),
        ];
        let orders = events.len().pow(6);
        for mut order in 0..orders {
            let mut volumes = AttachedVolumes::default();
            let mut staged = false;
            for _ in 0..6 {
                let event = events[order % events.len()];
                order /= events.len();
                match event {
                    Stage(uid, _) => staged |= volumes.stage(ATTACHMENT, &uid.into(), ()).is_some(),
                    Unstaged if volumes.to_unstage(ATTACHMENT).is_none() => {}
                    Unstaged => {
                        step(&mut volumes, event);
                        staged = false;
                    }
                    _ => step(&mut volumes, event),
                }
                assert!(!staged || volumes.contains(ATTACHMENT));
                let is_used = volumes.is_user(ATTACHMENT, "one") || volumes.is_user(ATTACHMENT, "two");
                assert_eq!(staged && !is_used, volumes.to_unstage(ATTACHMENT).is_some());
                // Exactly one pod's teardown is to end the use of what no pod uses any more.
                let is_left = volumes.contains(ATTACHMENT) && !is_used;
                assert_eq!(shown(&volumes).len(), usize::from(is_left));
            }
        }
    }

    #[test]
    fn s7_a_late_write_of_the_last_user_is_in_doubt_until_its_answer() {
        let mut volumes = AttachedVolumes::<()>::default();
        let uid = PodUid::from("one");
        for (is_answered, expected) in [(false, Some(&uid)), (true, None)] {
            volumes.take(ATTACHMENT, "v", &uid);
            if is_answered {
                volumes.taken(ATTACHMENT);
            }
            volumes.leave(&uid);
            assert_eq!(volumes.in_doubt(ATTACHMENT), expected);
            assert!(volumes.uses("one"), "until it is released");
            assert_eq!(volumes.in_use().collect::<Vec<_>>(), ["v"]);
            volumes.released(ATTACHMENT);
            assert!(!volumes.uses("one") && volumes.in_use().next().is_none());
        }
    }
}
