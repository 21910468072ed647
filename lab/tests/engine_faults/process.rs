//! Faults of a real process, given by the command.

use std::{
    net::{SocketAddr, TcpStream},
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use kvpick_lab::rig::tools;

use crate::world::PATIENCE;

fn lab(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvpick-lab"));
    command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Ends with the test.
struct Engine(Child);

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Engine {
    fn start(folder: &Path) -> (Self, SocketAddr) {
        let (file, tokenizer) = (folder.join("addresses.json"), tools::tokenizer().unwrap());
        let arguments = ["engine", "--model", "m", "--tokenizer", tokenizer.to_str().unwrap()];
        let child = lab(&arguments).arg("--addresses-file").arg(&file).spawn().unwrap();
        let engine = Self(child);
        let deadline = Instant::now() + PATIENCE;
        while !file.is_file() {
            assert!(Instant::now() < deadline, "the engine does not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        let addresses: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        (engine, addresses["http"].as_str().unwrap().parse().unwrap())
    }
}

fn fault(address: SocketAddr, arguments: &[&str]) -> bool {
    lab(&["fault", &address.to_string()]).args(arguments).status().unwrap().success()
}

#[test]
fn crash_ends_the_process_at_once_and_closes_its_port() {
    let folder = tempfile::tempdir().unwrap();
    let (mut engine, address) = Engine::start(folder.path());
    let open = TcpStream::connect(address).unwrap();
    assert!(fault(address, &["crash"]));
    let status = engine.0.wait().unwrap();
    assert_eq!((status.code(), status.signal()), (None, Some(9)), "killed, not ended");
    open.set_read_timeout(Some(PATIENCE)).unwrap();
    let read = std::io::Read::read(&mut &open, &mut [0]);
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    let refused = TcpStream::connect(address).expect_err("nothing listens");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    assert!(!fault(address, &["heal"]), "the command says that nobody is there");
}

#[test]
fn the_command_gives_a_fault_and_takes_it_back() {
    let folder = tempfile::tempdir().unwrap();
    let (_engine, address) = Engine::start(folder.path());
    assert!(fault(address, &["fail", "1", "--status", "503"]));
    assert!(fault(address, &["--rank", "0", "slow-steps", "2.5"]));
    assert!(fault(address, &["heal"]));
    assert!(!fault(address, &["--rank", "1", "heal"]), "there is one rank");
    assert!(!fault(address, &["refuse", "-1"]));
}
