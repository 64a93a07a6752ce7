//! Mutants: errors made on purpose, to show that the rules find them.
//!
//! Each is made where a component meets its environment (the API as it reaches it, its runtime): for the rules it is
//! the same as the error in the component would be, and no component has a switch for being wrong.

use std::fmt;
use std::str::FromStr;

use crate::switches::Switch;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    DeleteBeforeTheEnd,
    DeleteBeforeProcessesAreGone,
    StartTwice,
    CutTheGrace,
    LengthenTheGrace,
    ForceAway,
    ReplaceLost,
    GcWithoutQuarantine,
    ForgetUid,
    KeepReleased,
    IgnoreTerminating,
    LoseLastStep,
    ForgetTerm,
    DetachByTimer,
    MountWithoutAttach,
    BelieveTheAgent,
    FenceItselfLate,
    ReportBeforeCommit,
    ReleaseAtDeletion,
    StartBeforePolicy,
    ForgetDeletions,
    ReportPendingAgain,
    ReviveFinished,
    MoveBound,
    BindAgain,
    TakeDeletionBack,
    PutDeletionOff,
    NeverStop,
    KillAtOnce,
    ForgetRunning,
    ForgetInit,
    TakeStartedForDone,
    KeepOrphans,
    FenceAnother,
    ForgetRunningDaemons,
    ForgetDaemonsOfANode,
    TakeSentForRenewed,
    TermWithoutBarrier,
    ForgetAddresses,
    KeepRemoved,
    ForgetAttached,
    PreemptForEquals,
    BelittleBound,
    CountUnready,
    AllowOneMore,
    SkipCompacted,
    ResumeTooLate,
    TakeUnansweredForDone,
    AnswerAtNewest,
    UnstageEarly,
    DetachInUse,
    OfferTerminating,
    ForgetFallback,
    AnswerFromBefore,
    AnswerOnlyWhenConnected,
    ForgetCharges,
    GrantOneMore,
    NeverCountAgain,
    DeleteDefinitionAtOnce,
    ReviveObjects,
    MissOwners,
    StartUnannounced,
    DropAnnouncements,
    MoveWithoutEnd,
    ForgetMoves,
    ScatterDown,
    ForgetDeclared,
    EvictUnrecorded,
    SoftenClass,
    BackdateRequest,
    LeaveVictims,
}

use Mutation::*;

impl Mutation {
    pub const ALL: [Mutation; 71] = [
        DeleteBeforeTheEnd,
        DeleteBeforeProcessesAreGone,
        StartTwice,
        CutTheGrace,
        LengthenTheGrace,
        ForceAway,
        ReplaceLost,
        GcWithoutQuarantine,
        ForgetUid,
        KeepReleased,
        IgnoreTerminating,
        LoseLastStep,
        ForgetTerm,
        DetachByTimer,
        MountWithoutAttach,
        BelieveTheAgent,
        FenceItselfLate,
        ReportBeforeCommit,
        ReleaseAtDeletion,
        StartBeforePolicy,
        ForgetDeletions,
        ReportPendingAgain,
        ReviveFinished,
        MoveBound,
        BindAgain,
        TakeDeletionBack,
        PutDeletionOff,
        NeverStop,
        KillAtOnce,
        ForgetRunning,
        ForgetInit,
        TakeStartedForDone,
        KeepOrphans,
        FenceAnother,
        ForgetRunningDaemons,
        ForgetDaemonsOfANode,
        TakeSentForRenewed,
        TermWithoutBarrier,
        ForgetAddresses,
        KeepRemoved,
        ForgetAttached,
        PreemptForEquals,
        BelittleBound,
        CountUnready,
        AllowOneMore,
        SkipCompacted,
        ResumeTooLate,
        TakeUnansweredForDone,
        AnswerAtNewest,
        UnstageEarly,
        DetachInUse,
        OfferTerminating,
        ForgetFallback,
        AnswerFromBefore,
        AnswerOnlyWhenConnected,
        ForgetCharges,
        GrantOneMore,
        NeverCountAgain,
        DeleteDefinitionAtOnce,
        ReviveObjects,
        MissOwners,
        StartUnannounced,
        DropAnnouncements,
        MoveWithoutEnd,
        ForgetMoves,
        ScatterDown,
        ForgetDeclared,
        EvictUnrecorded,
        SoftenClass,
        BackdateRequest,
        LeaveVictims,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            DeleteBeforeTheEnd => "delete-before-the-end",
            DeleteBeforeProcessesAreGone => "delete-before-processes-are-gone",
            StartTwice => "start-twice",
            CutTheGrace => "cut-the-grace",
            LengthenTheGrace => "lengthen-the-grace",
            ForceAway => "force-away",
            ReplaceLost => "replace-lost",
            GcWithoutQuarantine => "gc-without-quarantine",
            ForgetUid => "forget-uid",
            KeepReleased => "keep-released",
            IgnoreTerminating => "ignore-terminating",
            LoseLastStep => "lose-last-step",
            ForgetTerm => "forget-term",
            DetachByTimer => "detach-by-timer",
            MountWithoutAttach => "mount-without-attach",
            BelieveTheAgent => "believe-the-agent",
            FenceItselfLate => "fence-itself-late",
            ReportBeforeCommit => "report-before-commit",
            ReleaseAtDeletion => "release-at-deletion",
            StartBeforePolicy => "start-before-policy",
            ForgetDeletions => "forget-deletions",
            ReportPendingAgain => "report-pending-again",
            ReviveFinished => "revive-finished",
            MoveBound => "move-bound",
            BindAgain => "bind-again",
            TakeDeletionBack => "take-deletion-back",
            PutDeletionOff => "put-deletion-off",
            NeverStop => "never-stop",
            KillAtOnce => "kill-at-once",
            ForgetRunning => "forget-running",
            ForgetInit => "forget-init",
            TakeStartedForDone => "take-started-for-done",
            KeepOrphans => "keep-orphans",
            FenceAnother => "fence-another",
            ForgetRunningDaemons => "forget-running-daemons",
            ForgetDaemonsOfANode => "forget-daemons-of-a-node",
            TakeSentForRenewed => "take-sent-for-renewed",
            TermWithoutBarrier => "term-without-barrier",
            ForgetAddresses => "forget-addresses",
            KeepRemoved => "keep-removed",
            ForgetAttached => "forget-attached",
            PreemptForEquals => "preempt-for-equals",
            BelittleBound => "belittle-bound",
            CountUnready => "count-unready",
            AllowOneMore => "allow-one-more",
            SkipCompacted => "skip-compacted",
            ResumeTooLate => "resume-too-late",
            TakeUnansweredForDone => "take-unanswered-for-done",
            AnswerAtNewest => "answer-at-newest",
            UnstageEarly => "unstage-early",
            DetachInUse => "detach-in-use",
            OfferTerminating => "offer-terminating",
            ForgetFallback => "forget-fallback",
            AnswerFromBefore => "answer-from-before",
            AnswerOnlyWhenConnected => "answer-only-when-connected",
            ForgetCharges => "forget-charges",
            GrantOneMore => "grant-one-more",
            NeverCountAgain => "never-count-again",
            DeleteDefinitionAtOnce => "delete-definition-at-once",
            ReviveObjects => "revive-objects",
            MissOwners => "miss-owners",
            StartUnannounced => "start-unannounced",
            DropAnnouncements => "drop-announcements",
            MoveWithoutEnd => "move-without-end",
            ForgetMoves => "forget-moves",
            ScatterDown => "scatter-down",
            ForgetDeclared => "forget-declared",
            EvictUnrecorded => "evict-unrecorded",
            SoftenClass => "soften-class",
            BackdateRequest => "backdate-request",
            LeaveVictims => "leave-victims",
        }
    }

    /// The error, as a sentence.
    pub fn what(self) -> &'static str {
        match self {
            DeleteBeforeTheEnd => "kubelets delete the pod instead of reporting how its termination proceeds",
            DeleteBeforeProcessesAreGone => {
                "kubelets take a stop request for the exit, and delete the pod while its processes run"
            }
            StartTwice => "runtimes start a second set of processes",
            CutTheGrace => "KILL comes a second after TERM",
            LengthenTheGrace => "processes get ten minutes, whatever the grace period of their pod",
            ForceAway => "controllers delete pods by force",
            ReplaceLost => "the pods of a StatefulSet are deleted by force on nodes that are not ready",
            GcWithoutQuarantine => "PodGC releases the pods of a missing node at once",
            ForgetUid => "deletions have no UID as a precondition",
            KeepReleased => "kubelets keep every pod that they have seen, and miss its deletion",
            IgnoreTerminating => "controllers take terminating pods for deleted",
            LoseLastStep => "kubelets do not complete deletions",
            ForgetTerm => "leaders write without the term in which they decided",
            DetachByTimer => {
                "volumes are detached from nodes that have not unmounted them after some seconds"
            }
            MountWithoutAttach => "kubelets mount volumes without waiting for their VolumeAttachment",
            BelieveTheAgent => {
                "the report of a fence agent that a node is off is not checked with its status"
            }
            ReportBeforeCommit => "network agents report endpoints before their kernel has them",
            ReleaseAtDeletion => "agents release the addresses of deleted pods, and not of removed sandboxes",
            StartBeforePolicy => "containers start before the NetworkPolicies of their pod are in the kernel",
            ForgetDeletions => "service proxies leave in the kernel what was deleted while they were stopped",
            ReportPendingAgain => "kubelets report the phase Pending of pods that run",
            ReviveFinished => "kubelets report the phase Running of pods that have terminated",
            MoveBound => "API servers move pods that run to another node",
            BindAgain => "API servers bind pods again that have a node and have not started",
            TakeDeletionBack => "API servers forget that a pod is deleted when its status is written",
            PutDeletionOff => "API servers put a deletion off whenever the pod is written",
            NeverStop => "runtimes report a container as stopped that got no signal",
            KillAtOnce => "kubelets send KILL and no TERM",
            ForgetRunning => "runtimes do not list containers that run",
            ForgetInit => "kubelets lose the init containers of the pods that they read",
            TakeStartedForDone => "kubelets take an init container that was started for completed",
            KeepOrphans => "runtimes do not stop containers whose pod is deleted",
            FenceAnother => "fence agents get the plug of another node",
            ForgetRunningDaemons => "controllers do not see the pods of DaemonSets that run",
            ForgetDaemonsOfANode => "controllers do not see the pods of DaemonSets on one of the nodes",
            TakeSentForRenewed => "kubelets take a renewal of their lease without an answer for successful",
            TermWithoutBarrier => "kubelets send TERM without waiting for the proxies",
            ForgetAddresses => "agents that are restarted forget which addresses are allocated",
            KeepRemoved => "service proxies leave deleted Services in the kernel",
            ForgetAttached => "agents that are restarted forget the pods whose policies they enforced",
            PreemptForEquals => "the scheduler sees a higher priority in pending pods than they have",
            BelittleBound => "the scheduler sees a lower priority in bound pods than they have",
            CountUnready => "the disruption controller takes all pods of a budget for healthy",
            AllowOneMore => "the disruption controller allows one disruption too many",
            SkipCompacted => {
                "API servers resume a watch after a compaction with what is left, and do not list again"
            }
            ResumeTooLate => "API servers resume a watch that broke one revision later than they should",
            TakeUnansweredForDone => "API servers take a write for committed that the store did not answer",
            AnswerAtNewest => "API servers answer a write with the store's newest revision",
            UnstageEarly => {
                "kubelets unstage a volume when the first of its pods on their node has terminated"
            }
            DetachInUse => "controllers request to detach volumes that a node uses",
            OfferTerminating => "service proxies send new connections to endpoints that terminate",
            ForgetFallback => "service proxies reject connections where all endpoints terminate",
            AnswerFromBefore => "DNS repeats its first answer for as long as its agent runs",
            AnswerOnlyWhenConnected => "DNS answers nothing while its node is cut off from the API",
            ForgetCharges => {
                "API servers store a quota's status without the usage that they have just charged"
            }
            GrantOneMore => "API servers admit one object more than a quota allows",
            NeverCountAgain => "the resource quota controller does not write its counts",
            DeleteDefinitionAtOnce => "API servers delete a definition that still has objects",
            ReviveObjects => {
                "API servers store a deleted custom resource again when its definition is created again"
            }
            MissOwners => "the garbage collector finds no custom resource that owns something",
            StartUnannounced => "kubelets start at-most-one pods without announcing it",
            DropAnnouncements => "API servers store pods without the announcement of their kubelet",
            MoveWithoutEnd => "the rebalancer finds a pod to move every time",
            ForgetMoves => "API servers store the status of a rebalance policy without its moves",
            ScatterDown => "API servers store workloads without the annotation for scaling down by spread",
            ForgetDeclared => "API servers store TopologyDomains without the domains that have no nodes",
            EvictUnrecorded => "API servers store pods without the node that they are nominated for",
            SoftenClass => "API servers store pods without the hard budgets of their class",
            BackdateRequest => "API servers record the request of an eviction as eleven minutes old",
            LeaveVictims => "schedulers take the victims of a preemption that was interrupted for evicted",
            FenceItselfLate => "cut-off kubelets count the time since the last renewal at half speed",
        }
    }

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
