//! A node whose identity has the owners and modes of a volume of Kubernetes. Root makes them and another user runs the
//! node, so without root the tests are skipped with one line.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Server, callboard, failure, without_settings};

/// The user of the container image.
const USER: u32 = 65_532;
/// The `fsGroup` of a pod.
const GROUP: u32 = 4_711;

/// A directory that every user can reach, removed at the end.
struct Volume(PathBuf);

impl Volume {
    /// `None`, with one line, without root, or in a checkout that another user cannot read.
    fn make(name: &str) -> Option<Self> {
        let is_root = rustix::process::geteuid().as_raw() == 0;
        if !is_root || !as_other_user(&["--version"]).output().is_ok_and(|output| output.status.success()) {
            let line = "skipped the tests of mounted secrets: they need root, and a checkout that others can read\n";
            let _ = std::io::stderr().write_all(line.as_bytes());
            return None;
        }
        let path = std::env::temp_dir().join(format!("callboard-mounted-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        Some(Self(path))
    }

    /// A member of a new cluster, as root's files.
    fn member(&self) -> PathBuf {
        let authority = self.0.join("authority");
        let authority = authority.to_str().unwrap();
        assert!(callboard(["cluster", "init", authority]).output().unwrap().status.success());
        let token = callboard(["cluster", "token", authority]).output().unwrap().stdout;
        fs::write(self.0.join("token"), token).unwrap();
        let mut issuer = Server::digits(&["--cluster", authority, "--quic", "127.0.0.1:0"]);
        let rest = issuer.wait_for("listening on quic://");
        let url = format!("quic://{}", rest.split(' ').next().unwrap());
        let (token, member) = (format!("@{}", self.0.join("token").display()), self.0.join("member"));
        let join = ["cluster", "join", &token, &url, "--name", "first", "--to"];
        assert!(callboard(join).arg(&member).output().unwrap().status.success());
        member
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Mounts the files of a member as a secret: behind links, on a mount point that all may write but for its sticky bit.
fn mount_secret(member: &Path, to: &Path, mode: u32) {
    let set = |path: &Path, mode| {
        chown(path, Some(0), Some(GROUP)).unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    };
    let data = to.join("..2026_11_29_01_00_00.1");
    fs::create_dir_all(&data).unwrap();
    for entry in fs::read_dir(member).unwrap() {
        let name = entry.unwrap().file_name();
        fs::copy(member.join(&name), data.join(&name)).unwrap();
        set(&data.join(&name), mode);
        symlink(Path::new("..data").join(&name), to.join(&name)).unwrap();
    }
    symlink(data.file_name().unwrap(), to.join("..data")).unwrap();
    set(&data, 0o2755);
    set(to, 0o3777);
}

/// The program, run by another user than root.
fn as_other_user(args: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={USER}"), format!("--regid={USER}"), format!("--groups={GROUP}")]);
    command.arg(env!("CARGO_BIN_EXE_callboard")).args(args);
    without_settings(command)
}

fn node(identity: &Path) -> Command {
    let mut command = as_other_user(&["serve", "examples/digits", "--http", "127.0.0.1:0"]);
    command.args(["--quic", "127.0.0.1:0", "--cluster"]).arg(identity);
    command
}

#[test]
fn a_node_starts_with_an_identity_mounted_as_a_secret_and_names_the_cure_of_other_modes() {
    let Some(volume) = Volume::make("secret") else { return };
    let member = volume.member();
    let secret = volume.0.join("secret");
    // `defaultMode: 0400`, and the access that `fsGroup` adds.
    mount_secret(&member, &secret, 0o440);
    let mut server = Server::start(node(&secret));
    server.wait_until_printed("listening on quic://");
    assert_eq!(server.request("GET /readyz HTTP/1.1", b"").status, 200);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));

    let data = secret.join("..data").join("identity.pem");
    for (mode, group, said) in [
        // The default of Kubernetes.
        (0o644, GROUP, "mode 0644 gives all users access (a secret of Kubernetes: `defaultMode: 0400`)"),
        (0o460, GROUP, "mode 0460 gives group 4711 access"),
        (0o400, GROUP, "set `securityContext.fsGroup`"),
        (0o440, 0, "set `securityContext.fsGroup`"),
    ] {
        chown(&data, Some(0), Some(group)).unwrap();
        fs::set_permissions(&data, Permissions::from_mode(mode)).unwrap();
        let (line, code) = failure(node(&secret));
        assert!(code == 1 && line.contains("secret/identity.pem") && line.contains(said), "{line}");
    }
    chown(&data, Some(70), Some(GROUP)).unwrap();
    let (line, _) = failure(node(&secret));
    assert!(line.contains("it belongs to another user, 70"), "{line}");
}

#[test]
fn a_node_keeps_its_identity_in_a_volume_of_its_group_and_refuses_it_when_others_may_write() {
    let Some(volume) = Volume::make("volume") else { return };
    let member = volume.member();
    let mount = volume.0.join("mount");
    // The volume itself belongs to root, and its group may write.
    fs::create_dir(&mount).unwrap();
    fs::rename(&member, mount.join("member")).unwrap();
    chown(&mount, Some(0), Some(GROUP)).unwrap();
    fs::set_permissions(&mount, Permissions::from_mode(0o2775)).unwrap();
    let member = mount.join("member");
    let files: Vec<PathBuf> = fs::read_dir(&member).unwrap().map(|entry| entry.unwrap().path()).collect();
    for path in files.iter().chain([&member]) {
        chown(path, Some(USER), Some(GROUP)).unwrap();
    }
    let mut server = Server::start(node(&member));
    server.wait_until_printed("listening on quic://");
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));

    // What a kubelet does to a used volume without `fsGroupChangePolicy: OnRootMismatch`.
    fs::set_permissions(member.join("identity.pem"), Permissions::from_mode(0o660)).unwrap();
    let (line, code) = failure(node(&member));
    assert!(code == 1 && line.contains("mode 0660") && line.contains("OnRootMismatch"), "{line}");
    fs::set_permissions(&member, Permissions::from_mode(0o2770)).unwrap();
    let (line, _) = failure(node(&member));
    assert!(line.contains("mode 2770") && line.contains("OnRootMismatch"), "{line}");
}

#[test]
fn a_link_of_another_user_or_out_of_the_directory_is_refused() {
    let Some(volume) = Volume::make("link") else { return };
    let member = volume.member();
    let secret = volume.0.join("secret");
    mount_secret(&member, &secret, 0o440);
    let link = secret.join("identity.pem");
    std::os::unix::fs::lchown(&link, Some(70), Some(70)).unwrap();
    let (line, _) = failure(node(&secret));
    assert!(line.contains("symbolic link of another user"), "{line}");

    fs::rename(secret.join("..data").join("identity.pem"), volume.0.join("outside.pem")).unwrap();
    fs::remove_file(&link).unwrap();
    symlink("../outside.pem", &link).unwrap();
    let (line, _) = failure(node(&secret));
    assert!(line.contains("symbolic link that leaves its directory"), "{line}");
}
