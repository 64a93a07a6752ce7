//! What is being measured and for how long already, on standard error: every second on a terminal, else every half minute.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, interval_at};

const ON_TERMINAL: Duration = Duration::from_secs(1);
const ELSEWHERE: Duration = Duration::from_secs(30);

/// Reports until it is dropped.
pub struct Progress {
    what: String,
    begin: Instant,
    is_terminal: bool,
    task: JoinHandle<()>,
}

impl Progress {
    /// `what` is a clause such as `measuring pods`.
    pub fn start(what: impl Into<String>) -> Progress {
        let (what, begin) = (what.into(), Instant::now());
        let is_terminal = std::io::stderr().is_terminal();
        let period = if is_terminal { ON_TERMINAL } else { ELSEWHERE };
        write(&what, "…", is_terminal);
        let shown = what.clone();
        let task = tokio::spawn(async move {
            let mut ticks = interval_at(begin + period, period);
            loop {
                ticks.tick().await;
                let elapsed = format!("… {} s", begin.elapsed().as_secs());
                write(&shown, &elapsed, is_terminal);
            }
        });
        Progress {
            what,
            begin,
            is_terminal,
            task,
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.task.abort();
        let took = format!("took {:.1} s", self.begin.elapsed().as_secs_f64());
        write(&self.what, &took, self.is_terminal);
        if self.is_terminal {
            eprintln!();
        }
    }
}

fn write(what: &str, state: &str, is_terminal: bool) {
    let mut out = std::io::stderr().lock();
    // Progress that cannot be written is not worth a failed measurement.
    let _ = if is_terminal {
        // Clears what was longer before.
        write!(out, "\r{what} {state}\x1b[K").and_then(|()| out.flush())
    } else {
        writeln!(out, "{what} {state}")
    };
}
