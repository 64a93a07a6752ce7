//! Mistakes made on purpose, to show that the rules against them see them.
//!
//! Each is made where a component meets the rest of the world (the API as it reaches it, its runtime): to the rules it
//! looks as the bug in the component would, and no component has a switch for being wrong.

use std::fmt;

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
}

use Mutation::*;

impl Mutation {
    pub const ALL: [Mutation; 21] = [
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
            FenceItselfLate => "cut-off kubelets count the time since they were last heard at half its pace",
        }
    }

    /// The rule that has to find it.
    pub fn rule(self) -> &'static str {
        match self {
            DeleteBeforeTheEnd | DeleteBeforeProcessesAreGone => "T5",
            StartTwice | ForgetTerm => "S1",
            CutTheGrace => "T3",
            LengthenTheGrace => "T2",
            ForceAway | ReplaceLost | GcWithoutQuarantine | ForgetUid => "S2",
            KeepReleased => "S5",
            BelieveTheAgent => "S6",
            FenceItselfLate => "B4",
            ReportBeforeCommit => "B7",
            ReleaseAtDeletion => "N1",
            StartBeforePolicy => "N6",
            ForgetDeletions => "N3",
            DetachByTimer | MountWithoutAttach => "S7",
            // S8 sees it too, in one history of some dozens; that Jobs' pods then never go, in one of three.
            IgnoreTerminating | LoseLastStep => "S9",
        }
    }
}

impl fmt::Display for Mutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
