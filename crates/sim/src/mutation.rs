//! Mutants: errors made on purpose, to show that the rules find them.
//!
//! Each is made where a component meets its environment (the API as it reaches it, its runtime): for the rules it is
//! the same as the error in the component would be, and no component has a switch for being wrong.

use std::fmt;
use std::str::FromStr;

use crate::switches::Switch;

/// Declares the mutants: `Variant "name on the command line": "the error, as a sentence",`
macro_rules! mutations {
    ($($variant:ident $name:literal: $what:literal,)*) => {
        /// See the module.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mutation {
            $(#[doc = $what] $variant,)*
        }

        impl Mutation {
            pub const ALL: [Mutation; [$($name),*].len()] = [$(Mutation::$variant),*];

            /// Its name on the command line.
            pub fn name(self) -> &'static str {
                match self {
                    $(Mutation::$variant => $name,)*
                }
            }

            /// The error, as a sentence.
            pub fn what(self) -> &'static str {
                match self {
                    $(Mutation::$variant => $what,)*
                }
            }
        }
    };
}

mutations! {
    DeleteBeforeTheEnd "delete-before-the-end": "kubelets delete the pod instead of reporting how its termination proceeds",
    DeleteBeforeProcessesAreGone "delete-before-processes-are-gone": "kubelets take a stop request for the exit, and delete the pod while its processes run",
    StartTwice "start-twice": "runtimes start a second set of processes",
    CutTheGrace "cut-the-grace": "KILL comes a second after TERM",
    LengthenTheGrace "lengthen-the-grace": "processes get ten minutes, whatever the grace period of their pod",
    ForceAway "force-away": "controllers delete pods by force",
    ReplaceLost "replace-lost": "the pods of a StatefulSet are deleted by force on nodes that are not ready",
    GcWithoutQuarantine "gc-without-quarantine": "PodGC releases the pods of a missing node at once",
    ForgetUid "forget-uid": "deletions have no UID as a precondition",
    KeepReleased "keep-released": "kubelets keep every pod that they have seen, and miss its deletion",
    IgnoreTerminating "ignore-terminating": "controllers take terminating pods for deleted",
    LoseLastStep "lose-last-step": "kubelets do not complete deletions",
    ForgetTerm "forget-term": "leaders write without the term in which they decided",
    DetachByTimer "detach-by-timer": "volumes are detached from nodes that have not unmounted them after some seconds",
    MountWithoutAttach "mount-without-attach": "kubelets mount volumes without waiting for their VolumeAttachment",
    BelieveTheAgent "believe-the-agent": "the report of a fence agent that a node is off is not checked with its status",
    FenceItselfLate "fence-itself-late": "cut-off kubelets count the time since the last renewal at half speed",
    ReportBeforeCommit "report-before-commit": "network agents report endpoints before their kernel has them",
    ReleaseAtDeletion "release-at-deletion": "agents release the addresses of deleted pods, and not of removed sandboxes",
    StartBeforePolicy "start-before-policy": "containers start before the NetworkPolicies of their pod are in the kernel",
    ForgetDeletions "forget-deletions": "service proxies leave in the kernel what was deleted while they were stopped",
    ReportPendingAgain "report-pending-again": "kubelets report the phase Pending of pods that run",
    ReviveFinished "revive-finished": "kubelets report the phase Running of pods that have terminated",
    MoveBound "move-bound": "API servers move pods that run to another node",
    BindAgain "bind-again": "API servers bind pods again that have a node and have not started",
    TakeDeletionBack "take-deletion-back": "API servers forget that a pod is deleted when its status is written",
    PutDeletionOff "put-deletion-off": "API servers put a deletion off whenever the pod is written",
    NeverStop "never-stop": "runtimes report a container as stopped that got no signal",
    KillAtOnce "kill-at-once": "kubelets send KILL and no TERM",
    ForgetRunning "forget-running": "runtimes do not list containers that run",
    ForgetInit "forget-init": "kubelets lose the init containers of the pods that they read",
    TakeStartedForDone "take-started-for-done": "kubelets take an init container that was started for completed",
    KeepOrphans "keep-orphans": "runtimes do not stop containers whose pod is deleted",
    FenceAnother "fence-another": "fence agents get the plug of another node",
    ForgetRunningDaemons "forget-running-daemons": "controllers do not see the pods of DaemonSets that run",
    ForgetDaemonsOfANode "forget-daemons-of-a-node": "controllers do not see the pods of DaemonSets on one of the nodes",
    TakeSentForRenewed "take-sent-for-renewed": "kubelets take a renewal of their lease without an answer for successful",
    TermWithoutBarrier "term-without-barrier": "kubelets send TERM without waiting for the proxies",
    ForgetAddresses "forget-addresses": "agents that are restarted forget which addresses are allocated",
    KeepRemoved "keep-removed": "service proxies leave deleted Services in the kernel",
    ForgetAttached "forget-attached": "agents that are restarted forget the pods whose policies they enforced",
    PreemptForEquals "preempt-for-equals": "the scheduler sees a higher priority in pending pods than they have",
    BelittleBound "belittle-bound": "the scheduler sees a lower priority in bound pods than they have",
    CountUnready "count-unready": "the disruption controller takes all pods of a budget for healthy",
    AllowOneMore "allow-one-more": "the disruption controller allows one disruption too many",
    SkipCompacted "skip-compacted": "API servers resume a watch after a compaction with what is left, and do not list again",
    ResumeTooLate "resume-too-late": "API servers resume a watch that broke one revision later than they should",
    TakeUnansweredForDone "take-unanswered-for-done": "API servers take a write for committed that the store did not answer",
    AnswerAtNewest "answer-at-newest": "API servers answer a write with the store's newest revision",
    UnstageEarly "unstage-early": "kubelets unstage a volume when the first of its pods on their node has terminated",
    DetachInUse "detach-in-use": "controllers request to detach volumes that a node uses",
    OfferTerminating "offer-terminating": "service proxies send new connections to endpoints that terminate",
    ForgetFallback "forget-fallback": "service proxies reject connections where all endpoints terminate",
    AnswerFromBefore "answer-from-before": "DNS repeats its first answer for as long as its agent runs",
    AnswerOnlyWhenConnected "answer-only-when-connected": "DNS answers nothing while its node is cut off from the API",
    ForgetCharges "forget-charges": "API servers store a quota's status without the usage that they have just charged",
    GrantOneMore "grant-one-more": "API servers admit one object more than a quota allows",
    NeverCountAgain "never-count-again": "the resource quota controller does not write its counts",
    DeleteDefinitionAtOnce "delete-definition-at-once": "API servers delete a definition that still has objects",
    ReviveObjects "revive-objects": "API servers store a deleted custom resource again when its definition is created again",
    MissOwners "miss-owners": "the garbage collector finds no custom resource that owns something",
    StartUnannounced "start-unannounced": "kubelets start at-most-one pods without announcing it",
    DropAnnouncements "drop-announcements": "API servers store pods without the announcement of their kubelet",
    MoveWithoutEnd "move-without-end": "the rebalancer finds a pod to move every time",
    ForgetMoves "forget-moves": "API servers store the status of a rebalance policy without its moves",
    ScatterDown "scatter-down": "API servers store workloads without the annotation for scaling down by spread",
    ForgetDeclared "forget-declared": "API servers store TopologyDomains without the domains that have no nodes",
    EvictUnrecorded "evict-unrecorded": "API servers store pods without the node that they are nominated for",
    SoftenClass "soften-class": "API servers store pods without the hard budgets of their class",
    BackdateRequest "backdate-request": "API servers record the request of an eviction as eleven minutes old",
    LeaveVictims "leave-victims": "schedulers take the victims of a preemption that was interrupted for evicted",
}

use Mutation::*;

impl Mutation {
    /// The rule that has to find it.
    pub fn rule(self) -> &'static str {
        match self {
            DeleteBeforeTheEnd | DeleteBeforeProcessesAreGone => "T5",
            StartTwice | ForgetTerm | ForgetRunning => "S1",
            CutTheGrace | KillAtOnce => "T3",
            LengthenTheGrace | NeverStop => "T2",
            ForceAway | ReplaceLost | GcWithoutQuarantine | ForgetUid => "S2",
            KeepReleased | KeepOrphans => "S5",
            BelieveTheAgent | FenceAnother => "S6",
            FenceItselfLate | TakeSentForRenewed => "B4",
            ReportBeforeCommit | TermWithoutBarrier => "B7",
            ReleaseAtDeletion | ForgetAddresses => "N1",
            StartBeforePolicy | ForgetAttached => "N6",
            OfferTerminating | ForgetFallback => "N4",
            AnswerFromBefore | AnswerOnlyWhenConnected => "N5",
            ForgetDeletions | KeepRemoved => "N3",
            DetachByTimer | MountWithoutAttach | UnstageEarly | DetachInUse => "S7",
            ReportPendingAgain | ReviveFinished => "L1",
            MoveBound | BindAgain => "L2",
            TakeDeletionBack | PutDeletionOff => "T1",
            ForgetInit | TakeStartedForDone => "S3",
            ForgetRunningDaemons | ForgetDaemonsOfANode => "S8",
            PreemptForEquals | BelittleBound => "P4",
            CountUnready | AllowOneMore => "P5",
            ForgetCharges | GrantOneMore | NeverCountAgain => "quota",
            DeleteDefinitionAtOnce | ReviveObjects | MissOwners => "custom",
            StartUnannounced | DropAnnouncements => "announced",
            MoveWithoutEnd | ForgetMoves | ScatterDown | ForgetDeclared => "B3",
            EvictUnrecorded | LeaveVictims => "B5",
            SoftenClass | BackdateRequest => "B6",
            // S8 finds it too, in one history of some dozens; that pods of Jobs are never deleted, in one of three.
            IgnoreTerminating | LoseLastStep => "S9",
            SkipCompacted | ResumeTooLate | TakeUnansweredForDone | AnswerAtNewest => "S9",
        }
    }

    /// The later switch without which it cannot be found.
    pub(crate) fn needs(self) -> Option<Switch> {
        match self {
            SkipCompacted | ResumeTooLate => Some(Switch::Compaction),
            TakeUnansweredForDone | AnswerAtNewest => Some(Switch::LostCommits),
            UnstageEarly | DetachInUse => Some(Switch::Staging),
            OfferTerminating | ForgetFallback => Some(Switch::EndpointEnds),
            AnswerFromBefore | AnswerOnlyWhenConnected => Some(Switch::Names),
            ForgetCharges | GrantOneMore | NeverCountAgain => Some(Switch::Quotas),
            DeleteDefinitionAtOnce | ReviveObjects | MissOwners => Some(Switch::CustomResources),
            MoveWithoutEnd | ForgetMoves => Some(Switch::Rebalancing),
            ScatterDown => Some(Switch::ScaleDown),
            ForgetDeclared => Some(Switch::TopologyDomains),
            EvictUnrecorded => Some(Switch::CrossNodePreemption),
            SoftenClass => Some(Switch::HardBudgets),
            BackdateRequest => Some(Switch::SurgeFirst),
            LeaveVictims => Some(Switch::PreemptionCrash),
            _ => None,
        }
    }
}

impl fmt::Display for Mutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// There is no mutant of this name.
#[derive(Debug, thiserror::Error)]
#[error("expected one of {}", Mutation::ALL.map(Mutation::name).join(", "))]
pub struct UnknownMutation;

impl FromStr for Mutation {
    type Err = UnknownMutation;

    fn from_str(name: &str) -> Result<Mutation, UnknownMutation> {
        let mut all = Mutation::ALL.into_iter();
        all.find(|mutation| mutation.name() == name)
            .ok_or(UnknownMutation)
    }
}
