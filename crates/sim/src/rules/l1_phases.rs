//! L1: phases only move forward, and Succeeded and Failed are final.

use crate::finding::Finding;
use crate::world::{Observation, World, phase_of};

pub(crate) fn check(seen: &Observation<'_>, _: &World) -> Result<(), Finding> {
    let Observation::PodWritten { before, after, .. } = seen else {
        return Ok(());
    };
    let is = phase_of(after);
    let Some(was) = before.map(phase_of) else {
        return match is {
            "Pending" => Ok(()),
            other => Err(Finding(format!("a new pod begins as {other:?}, not Pending"))),
        };
    };
    let backwards = match was {
        "Succeeded" | "Failed" => is != was,
        "Running" => is == "Pending",
        _ => false,
    };
    if backwards || !matches!(is, "Pending" | "Running" | "Succeeded" | "Failed" | "Unknown") {
        return Err(Finding(format!("a pod's phase changed from {was:?} to {is:?}")));
    }
    Ok(())
}
