//! A PostgreSQL server of a test's own, which ends with it. Tests of other packages use it, too.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use callboard_state::PostgresStore;

/// A server on a socket in its own directory. It ends with the test.
pub(crate) struct Server {
    programs: PathBuf,
    pub(crate) directory: PathBuf,
    child: Option<Child>,
}

/// The user who may run the server: it refuses to run as root.
fn server_user() -> Option<u32> {
    if fs::metadata("/proc/self").ok()?.uid() != 0 {
        return None;
    }
    let id = Command::new("id").args(["-u", "postgres"]).output().ok()?;
    String::from_utf8(id.stdout).ok()?.trim().parse().ok()
}

fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut found: Vec<PathBuf> = versions.filter_map(|version| Some(version.ok()?.path().join("bin"))).collect();
    found.retain(|programs| programs.join("postgres").exists() && programs.join("initdb").exists());
    found.sort();
    found.pop()
}

impl Server {
    /// Makes a database and runs its server: on a socket in its directory, and at `address` for that network (`/24`).
    ///
    /// # Errors
    ///
    /// The programs of the server are not on this machine.
    pub(crate) fn try_start(name: &str, address: Option<&str>) -> Result<Self, String> {
        let programs = programs().ok_or("PostgreSQL is not in /usr/lib/postgresql")?;
        let directory = std::env::temp_dir().join(format!("callboard-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).unwrap();
        let mut server = Self { programs, directory, child: None };
        if let Some(user) = server_user() {
            chown(&server.directory, Some(user), None).unwrap();
        }
        let data = server.data();
        let made = server.command("initdb").args(["-A", "trust", "-U", "callboard", "-N", "-D"]).arg(&data).output();
        let made = made.unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        server.write("postgresql.auto.conf", &format!("listen_addresses = '{}'", address.unwrap_or_default()));
        let rule = address.map(|address| format!("host all all {address}/24 trust")).unwrap_or_default();
        server.write("pg_hba.conf", &format!("local all all trust\n{rule}\n"));
        server.run();
        Ok(server)
    }

    fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    /// Writes a file that the server reads: its settings, which are those of `postgresql.auto.conf`, its rules, or a
    /// key.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let file = self.data().join(name);
        let mut options = File::options();
        let mut opened = options.write(true).create(true).truncate(true).mode(0o600).open(&file).unwrap();
        opened.write_all(text.as_bytes()).unwrap();
        if let Some(user) = server_user() {
            chown(&file, Some(user), None).unwrap();
        }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.current_dir("/").stdin(Stdio::null());
        if let Some(user) = server_user() {
            command.uid(user);
        }
        command
    }

    pub(crate) fn run(&mut self) {
        let mut command = self.command("postgres");
        command.arg("-D").arg(self.data()).arg("-k").arg(&self.directory);
        let log = File::create(self.directory.join("log")).unwrap();
        self.child = Some(command.stdout(Stdio::null()).stderr(log).spawn().unwrap());
    }

    pub(crate) fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // An immediate shutdown is as a crash, and takes the processes of the connections along.
            let stopped = Command::new("kill").args(["-QUIT", &child.id().to_string()]).status();
            assert!(stopped.is_ok_and(|status| status.success()));
            let _ = child.wait();
        }
    }

    pub(crate) fn store(&self) -> PostgresStore {
        store_at(&self.directory)
    }

    /// Waits until it answers, and has the table.
    pub(crate) async fn until_up(&self) {
        let trying = async {
            while let Err(error) = self.store().create_table().await {
                drop(error);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), trying).await.expect("the server starts");
    }
}

/// A store on the server whose socket is in this directory.
pub(crate) fn store_at(directory: &Path) -> PostgresStore {
    PostgresStore::try_new(&format!("host={} user=callboard dbname=postgres", directory.display())).unwrap()
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
        let _ = fs::remove_dir_all(&self.directory);
    }
}
