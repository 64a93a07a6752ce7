//! L1: phases go forward only, and what has ended stays as it ended.

use crate::world::{Seen, World, phase_of};

pub(crate) fn check(seen: &Seen<'_>, _: &World) -> Result<(), String> {
    let Seen::PodWritten { before, after, .. } = seen else {
        return Ok(());
    };
    let is = phase_of(after);
    let Some(was) = before.map(phase_of) else {
        return match is {
            "Pending" => Ok(()),
            other => Err(format!("a new pod begins as {other:?}, not Pending")),
        };
    };
    let backwards = match was {
        "Succeeded" | "Failed" => is != was,
        "Running" => is == "Pending",
        _ => false,
    };
    if backwards || !matches!(is, "Pending" | "Running" | "Succeeded" | "Failed" | "Unknown") {
        return Err(format!("a pod's phase went from {was:?} to {is:?}"));
    }
    Ok(())
}
