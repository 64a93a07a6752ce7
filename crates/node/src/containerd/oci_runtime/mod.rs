//! The OCI runtime of new containers: crun where it is installed and works, else runc, unless one is set.
//!
//! Whether crun works is found out by [running a container](trial) with it, once at the node's start: it rejects
//! some hosts, as crun 1.8 does those with hybrid cgroups. Without crun nothing is run.

mod trial;

use std::ffi::OsStr;
use std::path::Path;

use knarr_kubelet::cgroup::CgroupDriver;

use super::process::find_in;
use trial::{Limits, Trial, TrialError};

const RUNC: &str = "runc";
const CRUN: &str = "crun";

/// Which OCI runtime new containers get. Those that run keep theirs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OciRuntimeChoice {
    /// crun where it is installed and works, else runc.
    #[default]
    Auto,
    /// This program: its name in PATH, or its path.
    Program(String),
}

/// Where crun is searched, and how it is tried.
#[derive(Clone, Copy, Debug)]
pub struct TrialSettings<'a> {
    /// The directories of programs, as in PATH.
    pub search_path: &'a OsStr,
    /// A directory that only root can enter.
    pub directory: &'a Path,
    /// Of the kubelet.
    pub driver: CgroupDriver,
}

/// What is known of crun on this host.
#[derive(Debug)]
enum Crun {
    /// Or not of interest.
    NotInstalled,
    Fails(TrialError),
    Works,
}

impl OciRuntimeChoice {
    /// The program of new containers: its name in PATH, or its path.
    pub async fn program(&self, settings: TrialSettings<'_>) -> String {
        let crun = match self {
            OciRuntimeChoice::Auto => try_crun(settings).await,
            OciRuntimeChoice::Program(_) => Crun::NotInstalled,
        };
        report(&crun);
        choose(self, &crun).to_owned()
    }

    /// The program, for a containerd that creates no containers: nothing is tried.
    pub fn untried_program(&self) -> String {
        choose(self, &Crun::NotInstalled).to_owned()
    }
}

/// What is known of crun has no effect where a program is set.
fn choose<'a>(choice: &'a OciRuntimeChoice, crun: &Crun) -> &'a str {
    match (choice, crun) {
        (OciRuntimeChoice::Program(program), _) => program,
        (OciRuntimeChoice::Auto, Crun::Works) => CRUN,
        (OciRuntimeChoice::Auto, Crun::NotInstalled | Crun::Fails(_)) => RUNC,
    }
}

async fn try_crun(settings: TrialSettings<'_>) -> Crun {
    let Some(program) = find_in(settings.search_path, Path::new(CRUN)) else {
        return Crun::NotInstalled;
    };
    let trial = Trial {
        program: &program,
        directory: settings.directory,
        driver: settings.driver,
        limits: Limits::default(),
    };
    match trial.run().await {
        Ok(()) => Crun::Works,
        Err(error) => Crun::Fails(error),
    }
}

fn report(crun: &Crun) {
    match crun {
        Crun::NotInstalled => {}
        Crun::Works => {
            tracing::info!("new containers get the OCI runtime crun, which runs containers on this host")
        }
        Crun::Fails(error) => tracing::info!(
            %error,
            "new containers get the OCI runtime runc, because crun cannot run a container on this host"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_containers_get_crun_where_it_works_unless_a_runtime_is_set() {
        let auto = || OciRuntimeChoice::Auto;
        let set = |program: &str| OciRuntimeChoice::Program(program.into());
        let fails = || Crun::Fails(TrialError::Architecture);
        for (choice, crun, program) in [
            (auto(), Crun::NotInstalled, "runc"),
            (auto(), fails(), "runc"),
            (auto(), Crun::Works, "crun"),
            (set("runc"), Crun::Works, "runc"),
            (set("crun"), Crun::NotInstalled, "crun"),
            (set("crun"), fails(), "crun"),
            (set("/opt/youki"), Crun::Works, "/opt/youki"),
        ] {
            assert_eq!(choose(&choice, &crun), program, "{choice:?}, {crun:?}");
        }
    }

    #[tokio::test]
    async fn crun_is_run_only_where_it_is_installed_and_none_is_set() {
        let programs = tempfile::tempdir().unwrap();
        let bundles = tempfile::tempdir().unwrap();
        let settings = TrialSettings {
            search_path: programs.path().as_os_str(),
            directory: bundles.path(),
            driver: CgroupDriver::Cgroupfs,
        };
        let calls = || trial::tests::calls(programs.path());
        let set = OciRuntimeChoice::Program("runc".into());
        assert_eq!(OciRuntimeChoice::Auto.program(settings).await, "runc");
        trial::tests::write_program(&programs.path().join("crun"), "exit 0");
        assert_eq!(set.program(settings).await, "runc");
        assert_eq!(OciRuntimeChoice::Auto.untried_program(), "runc");
        assert_eq!(calls(), Vec::<String>::new());
        assert_eq!(OciRuntimeChoice::Auto.program(settings).await, "crun");
        assert_eq!(calls().len(), 1);
        trial::tests::write_program(&programs.path().join("crun"), "exit 1");
        assert_eq!(OciRuntimeChoice::Auto.program(settings).await, "runc");
    }
}
