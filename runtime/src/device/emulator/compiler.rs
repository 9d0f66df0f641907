//! The system's C++ compiler.

use std::env;
use std::io::{Read, Write};
use std::process::{Command, Output, Stdio};

use crate::device::error::{DeviceError, Result, system};

/// Flags that decide bits, and two for speed of loading; part of a cache entry's key.
const FLAGS: &[&str] = &[
    "-O2",
    "-std=c++17",
    "-ffp-contract=off",
    "-fno-fast-math",
    "-fno-math-errno",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-fno-exceptions",
    "-fno-rtti",
    "-fvisibility=hidden",
    "-fPIC",
    "-shared",
];

pub(super) struct Compiler {
    /// The command and the arguments it begins with.
    command: Vec<String>,
    version: String,
    identity: String,
}

impl Compiler {
    /// `CXX`, else the usual names.
    pub(super) fn find() -> Result<Self> {
        let set = env::var("CXX").ok().filter(|v| !v.trim().is_empty());
        let candidates = match &set {
            Some(command) => vec![command.as_str()],
            None => vec!["c++", "g++", "clang++"],
        };
        let found = candidates.iter().find_map(|command| Self::ask(command));
        found.ok_or_else(|| {
            let prefix = if set.is_some() { "CXX=" } else { "" };
            DeviceError::NoCompiler { tried: format!("{prefix}{}", candidates.join(", ")) }
        })
    }

    fn ask(command: &str) -> Option<Self> {
        let command: Vec<String> = command.split_whitespace().map(String::from).collect();
        let say = |flag: &str| {
            let output = start(&command).arg(flag).stdin(Stdio::null()).output().ok()?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            (output.status.success() && !text.trim().is_empty()).then_some(text)
        };
        let version = say("--version")?.lines().next()?.to_owned();
        let machine = say("-dumpmachine").unwrap_or_default();
        // Arguments in CXX count; the program's path does not.
        let identity = format!("{version}\n{}\n{}", machine.trim(), command[1..].join(" "));
        Some(Self { command, version, identity })
    }

    /// The first line that the compiler says about itself.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// What tells this compiler from others.
    pub(super) fn identity(&self) -> &str {
        &self.identity
    }

    /// C++ to the bytes of a shared library. Errors carry the compiler's words under `name`.
    pub(super) fn compile(&self, name: &str, text: &str, defines: &[String]) -> Result<Vec<u8>> {
        let folder = tempfile::Builder::new().prefix("unio-").tempdir().map_err(system("making a temporary folder"))?;
        let library = folder.path().join("kernels.so");
        let mut command = start(&self.command);
        command.args(flags()).args(defines).args(["-x", "c++", "-", "-o"]).arg(&library).arg("-lm");
        let output = feed(command, text).map_err(system("running the C++ compiler"))?;
        if !output.status.success() {
            let log = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
            return Err(DeviceError::Compile { name: name.into(), compiler: self.version.clone(), log });
        }
        std::fs::read(&library).map_err(system("reading a compiled kernel"))
    }
}

/// All flags, with those that this machine's processor allows.
pub(super) fn flags() -> Vec<&'static str> {
    let mut flags = FLAGS.to_vec();
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("fma") && std::arch::is_x86_feature_detected!("avx2") {
        flags.extend(["-mfma", "-mavx2"]);
    }
    flags
}

fn start(command: &[String]) -> Command {
    let mut start = Command::new(&command[0]);
    // The compiler's words must not depend on the user's language.
    start.args(&command[1..]).env("LC_ALL", "C");
    start
}

/// Runs a command with `text` as its input.
fn feed(mut command: Command, text: &str) -> std::io::Result<Output> {
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let (stdin, stderr) = (child.stdin.take(), child.stderr.take());
    let stderr = std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut log = Vec::new();
            stderr.map(|mut pipe| pipe.read_to_end(&mut log)).transpose().map(|_| log)
        });
        // A compiler that stops reading early says why on its other pipe.
        let _ = stdin.map(|mut pipe| pipe.write_all(text.as_bytes()));
        reader.join().unwrap_or_else(|_| Ok(Vec::new()))
    })?;
    Ok(Output { status: child.wait()?, stdout: Vec::new(), stderr })
}
