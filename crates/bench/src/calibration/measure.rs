//! Measures a [`Calibration`]. It blocks; each part has a limit of time, so that a slow host takes ten seconds, too.

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Barrier;

use tokio::time::Instant;

use super::samples::{Sizes, median, median_of};
use super::{Calibration, RuncRun, runc};
use crate::stats::percentile;

/// Why there is no calibration.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    #[error("cannot measure fdatasync in {directory}")]
    Fdatasync {
        directory: String,
        source: std::io::Error,
    },
    #[error("cannot measure a round trip over loopback")]
    Loopback(#[source] std::io::Error),
    #[error("a thread of the calibration panicked")]
    Panicked,
}

/// Measures all of it; `directory` is on the disk that is measured.
pub fn measure(sizes: &Sizes, directory: &Path) -> Result<Calibration, CalibrationError> {
    let failed = |source| CalibrationError::Fdatasync {
        directory: directory.display().to_string(),
        source,
    };
    Ok(Calibration {
        cpu_seconds: cpu(sizes),
        two_cpus_seconds: two_cpus(sizes)?,
        memory_copy_seconds: memory_copy(sizes),
        fdatasync_seconds: fdatasync(sizes, directory).map_err(failed)?,
        loopback_seconds: loopback(sizes)?,
        runc_run: match runc::run(sizes, directory) {
            Ok(seconds) => RuncRun::Seconds(seconds),
            Err(why) => RuncRun::Skipped(with_sources(&why)),
        },
    })
}

fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text += &format!(": {error}");
        source = error.source();
    }
    text
}

/// xorshift64*: each step needs the result of the one before, so that it is the core's latency that counts.
fn steps(count: u64) -> u64 {
    let mut x = black_box(0x9e37_79b9_7f4a_7c15_u64);
    for _ in 0..count {
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        x = x.wrapping_mul(0x2545_f491_4f6c_dd1d);
    }
    x
}

fn millions(sizes: &Sizes) -> f64 {
    sizes.steps as f64 / 1e6
}

fn cpu(sizes: &Sizes) -> f64 {
    let seconds = median_of(sizes.samples, sizes.limit, || {
        black_box(steps(sizes.steps));
    });
    seconds / millions(sizes)
}

fn two_cpus(sizes: &Sizes) -> Result<f64, CalibrationError> {
    let begin = Instant::now();
    let mut samples = Vec::new();
    while samples.len() < sizes.samples && (samples.is_empty() || begin.elapsed() < sizes.limit) {
        let barrier = Barrier::new(2);
        let work = || {
            barrier.wait();
            let begin = Instant::now();
            black_box(steps(sizes.steps));
            begin.elapsed().as_secs_f64()
        };
        let both = std::thread::scope(|scope| {
            let other = scope.spawn(work);
            let own = work();
            other.join().map(|other| own.max(other))
        });
        samples.push(both.map_err(|_| CalibrationError::Panicked)?);
    }
    Ok(percentile(&mut samples, 50.0) / millions(sizes) / 2.0)
}

fn memory_copy(sizes: &Sizes) -> f64 {
    // Written once, so that its pages exist.
    let source = vec![1_u8; sizes.copy_bytes];
    let mut target = vec![2_u8; sizes.copy_bytes];
    let seconds = median_of(sizes.samples, sizes.limit, || {
        target.copy_from_slice(black_box(&source));
        black_box(&mut target);
    });
    seconds / (sizes.copy_bytes as f64 / 1e6)
}

fn fdatasync(sizes: &Sizes, directory: &Path) -> std::io::Result<f64> {
    let mut file = tempfile::tempfile_in(directory)?;
    let block = [7_u8; 4096];
    median(sizes.fdatasyncs, sizes.limit, || {
        file.write_all(&block)?;
        file.sync_data()
    })
}

/// Answers each byte with one, until the other side closes.
fn echo(listener: &TcpListener) -> std::io::Result<()> {
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let mut byte = [0];
    while stream.read(&mut byte)? > 0 {
        stream.write_all(&byte)?;
    }
    Ok(())
}

fn loopback(sizes: &Sizes) -> Result<f64, CalibrationError> {
    let failed = CalibrationError::Loopback;
    let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    std::thread::scope(|scope| {
        // A client that does not come would leave the thread waiting: the backlog takes the connection first.
        let mut stream = TcpStream::connect(address).map_err(failed)?;
        let answering = scope.spawn(|| echo(&listener));
        let seconds = stream.set_nodelay(true).and_then(|()| {
            median(sizes.samples, sizes.limit, || {
                let mut byte = [1];
                for _ in 0..sizes.round_trips {
                    stream.write_all(&byte)?;
                    stream.read_exact(&mut byte)?;
                }
                Ok(())
            })
        });
        drop(stream);
        let answered = answering.join().map_err(|_| CalibrationError::Panicked)?;
        answered.map_err(failed)?;
        Ok(seconds.map_err(failed)? / f64::from(sizes.round_trips))
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn tiny() -> Sizes {
        Sizes {
            steps: 1_000,
            copy_bytes: 100_000,
            round_trips: 3,
            samples: 3,
            containers: 0,
            fdatasyncs: 2,
            limit: Duration::from_millis(100),
        }
    }

    #[test]
    fn every_part_is_measured_and_containers_can_be_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let found = measure(&tiny(), directory.path()).unwrap();
        for (what, seconds) in [
            ("cpu", found.cpu_seconds),
            ("two cpus", found.two_cpus_seconds),
            ("memory copy", found.memory_copy_seconds),
            ("fdatasync", found.fdatasync_seconds),
            ("loopback", found.loopback_seconds),
        ] {
            assert!(seconds > 0.0 && seconds < 1.0, "{what}: {seconds}");
        }
        let RuncRun::Skipped(why) = found.runc_run else {
            panic!("no container was asked for")
        };
        assert!(why.contains("left out"), "{why}");
        assert_eq!(
            std::fs::read_dir(directory.path()).unwrap().count(),
            0,
            "nothing is left behind"
        );
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_named() {
        let error = measure(&tiny(), Path::new("/proc/none")).unwrap_err();
        assert!(error.to_string().contains("/proc/none"), "{error}");
    }

    #[test]
    fn steps_depend_on_each_other() {
        assert_ne!(steps(10), steps(11));
        assert_eq!(steps(11), steps(11));
    }
}
