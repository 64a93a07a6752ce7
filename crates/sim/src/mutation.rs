//! Mistakes made on purpose, to show that the rules against them see them.
//!
//! Each is made where a component meets the rest of the world (the API as it reaches it, its runtime): to the rules it
//! looks as the bug in the component would, and no component has a switch for being wrong.

use std::fmt;

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
}

use Mutation::*;

impl Mutation {
    pub const ALL: [Mutation; 63] = [
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
    ];

    /// As it is called on the command line.
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
        }
    }

    /// The mistake, in words.
    pub fn what(self) -> &'static str {
        match self {
            DeleteBeforeTheEnd => "kubelets delete the object when they should say how the end goes",
            DeleteBeforeProcessesAreGone => {
                "kubelets take an order to end for the end, and delete the object while processes run"
            }
            StartTwice => "runtimes start a second set of processes",
            CutTheGrace => "KILL comes a second after TERM",
            LengthenTheGrace => "processes are given ten minutes, whatever their pod says",
            ForceAway => "controllers remove pods by force",
            ReplaceLost => "a StatefulSet's pods are removed by force from nodes that are not ready",
            GcWithoutQuarantine => "PodGC releases the pods of a missing node at once",
            ForgetUid => "deletions do not say which uid they mean",
            KeepReleased => "kubelets keep what they once were given, and never hear that it is gone",
            IgnoreTerminating => "controllers take pods that are ending for gone",
            LoseLastStep => "kubelets do not complete deletions",
            ForgetTerm => "leaders do not say in which term they decided what they write",
            DetachByTimer => "volumes are taken from nodes that have not let go of them after some seconds",
            MountWithoutAttach => "kubelets mount volumes without asking who has them",
            BelieveTheAgent => {
                "a fence agent that says that it has switched a node off is not asked whether it is"
            }
            ReportBeforeCommit => "network agents report endpoints before their kernel has them",
            ReleaseAtDeletion => {
                "agents release the addresses of pods that are deleted, and not of sandboxes that are gone"
            }
            StartBeforePolicy => "containers start before the NetworkPolicies of their pod are in the kernel",
            ForgetDeletions => {
                "service proxies that are started again leave what went meanwhile in the kernel"
            }
            ReportPendingAgain => "kubelets report the phase Pending of pods that run",
            ReviveFinished => "kubelets report the phase Running of pods that have ended",
            MoveBound => "API servers move pods that run to another node",
            BindAgain => "API servers bind pods again that have a node and have not begun",
            TakeDeletionBack => "API servers forget that a pod is deleted when its status is written",
            PutDeletionOff => "API servers put a deletion off whenever the pod is written",
            NeverStop => "runtimes say that a container was stopped that was not asked to end",
            KillAtOnce => "kubelets send KILL and no TERM",
            ForgetRunning => "runtimes do not list containers that run",
            ForgetInit => "kubelets lose the init containers of the pods that they read",
            TakeStartedForDone => "kubelets take an init container that was started for done",
            KeepOrphans => "runtimes do not stop what belongs to no pod any more",
            FenceAnother => "fence agents are given the plug of another node",
            ForgetRunningDaemons => "controllers do not see the pods of DaemonSets that run",
            ForgetDaemonsOfANode => "controllers do not see the pods of DaemonSets on one of the nodes",
            TakeSentForRenewed => "kubelets take a renewal of their lease that got no answer for done",
            TermWithoutBarrier => "kubelets send TERM without waiting for the proxies",
            ForgetAddresses => "agents that are started again forget which addresses they gave out",
            KeepRemoved => "service proxies leave what goes in the kernel",
            ForgetAttached => "agents that are started again forget the pods whose policies they enforced",
            PreemptForEquals => "the scheduler takes pods that wait for more important than they are",
            BelittleBound => "the scheduler takes pods that have a node for less important than they are",
            CountUnready => "the disruption controller takes all pods of a budget for healthy",
            AllowOneMore => "the disruption controller allows one disruption more than there is",
            SkipCompacted => {
                "API servers whose history was compacted go on with what is left, and do not list again"
            }
            ResumeTooLate => "API servers resume a watch that broke one revision later than they should",
            TakeUnansweredForDone => "API servers take a write for done that the store did not answer",
            AnswerAtNewest => "API servers answer a write with the store's newest revision",
            UnstageEarly => "kubelets unstage a volume when the first of its pods on their node has ended",
            DetachInUse => "controllers ask for volumes to be detached that a node uses",
            OfferTerminating => "service proxies send new connections to endpoints that terminate",
            ForgetFallback => "service proxies reject connections where all endpoints terminate",
            AnswerFromBefore => "DNS answers what it answered first, for as long as its agent runs",
            AnswerOnlyWhenConnected => "DNS answers nothing while its node is cut off from the API",
            ForgetCharges => "API servers store a quota's status without what they have just charged to it",
            GrantOneMore => "API servers admit one object more than a quota has room for",
            NeverCountAgain => "the resource quota controller does not write what it counts",
            DeleteDefinitionAtOnce => "API servers delete a definition whose objects are there",
            ReviveObjects => {
                "API servers store a deleted custom resource again when its definition is created again"
            }
            MissOwners => "the garbage collector finds no custom resource that owns something",
            StartUnannounced => "kubelets start pods that must not run twice without writing that they do",
            DropAnnouncements => {
                "API servers store pods without what their kubelets have written about their start"
            }
            FenceItselfLate => "cut-off kubelets count the time since they were last heard at half its pace",
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
            StartUnannounced => "announced",
            // A kubelet does not start what it could not announce.
            DropAnnouncements => "S9",
            // S8 sees it too, in one history of some dozens; that Jobs' pods then never go, in one of three.
            IgnoreTerminating | LoseLastStep => "S9",
            SkipCompacted | ResumeTooLate | TakeUnansweredForDone | AnswerAtNewest => "S9",
        }
    }

    /// Whether it is seen only with a switch that no seed draws: then no test demands that it is found.
    pub fn is_by_name_only(self) -> bool {
        self.needs().is_some_and(Switch::is_by_name_only)
    }

    /// The later switch without which it cannot be seen.
    pub(crate) fn needs(self) -> Option<Switch> {
        match self {
            SkipCompacted | ResumeTooLate => Some(Switch::Compaction),
            TakeUnansweredForDone | AnswerAtNewest => Some(Switch::LostCommits),
            UnstageEarly | DetachInUse => Some(Switch::Staging),
            OfferTerminating | ForgetFallback => Some(Switch::EndpointEnds),
            AnswerFromBefore | AnswerOnlyWhenConnected => Some(Switch::Names),
            ForgetCharges | GrantOneMore | NeverCountAgain => Some(Switch::Quotas),
            DeleteDefinitionAtOnce | ReviveObjects | MissOwners => Some(Switch::CustomResources),
            _ => None,
        }
    }
}

impl fmt::Display for Mutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
