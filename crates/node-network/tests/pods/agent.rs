//! An agent as a process of its own, which can be killed for real.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

use knarr_node_network::pods::{Config, NoHook, Pods, Server};
use tokio::sync::watch;

use crate::node::{Node, network};

const DIRECTORY: &str = "KNARR_TEST_RECORDS";
const SOCKET: &str = "KNARR_TEST_SOCKET";

/// Serves until it is killed, if this process was started as an agent.
pub fn run_if_called() -> Option<ExitCode> {
    let directory = PathBuf::from(std::env::var_os(DIRECTORY)?);
    let socket = PathBuf::from(std::env::var_os(SOCKET)?);
    let cidrs = network(&["10.244.1.0/24", "fd00:244:0:1::/64"]);
    let network = watch::Sender::new(Some(cidrs));
    let config = Config {
        directory,
        socket,
        instance: None,
        network: network.subscribe(),
        before_up: Arc::new(NoHook),
        pods: Pods::default(),
        reserved: Vec::new(),
        earlier: None,
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let _server = Server::start(config).await.unwrap();
        std::future::pending::<()>().await;
    });
    Some(ExitCode::SUCCESS)
}

pub struct Agent {
    child: Child,
}

impl Agent {
    /// Starts it in the node's namespace and waits until it listens.
    pub fn start(node: &Node) -> Self {
        let (records, socket) = (node.records(), node.socket());
        let listening = socket.clone();
        let child = node.namespace.run(move || {
            Command::new(std::env::current_exe().unwrap())
                .env(DIRECTORY, records)
                .env(SOCKET, socket)
                .spawn()
                .unwrap()
        });
        let end = Instant::now() + Duration::from_secs(10);
        while UnixStream::connect(&listening).is_err() {
            assert!(Instant::now() < end, "the agent does not listen");
            std::thread::sleep(Duration::from_millis(2));
        }
        Agent { child }
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}
