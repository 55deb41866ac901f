use super::*;

struct MountFixture {
    _temp: tempfile::TempDir,
    root: Utf8PathBuf,
    spec: SandboxSpec,
}

impl MountFixture {
    /// A working directory `work` with a git directory, beside a directory `secret`.
    fn new() -> MountFixture {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(temp.path()).unwrap().canonicalize_utf8().unwrap();
        for folder in ["work/.git/objects", "work/.git/refs", "work/.git/hooks", "secret/deep"] {
            std::fs::create_dir_all(root.join(folder)).unwrap();
        }
        for file in ["work/.git/HEAD", "work/.git/config", "secret/key", "secret/deep/key"] {
            std::fs::write(root.join(file), "x").unwrap();
        }
        MountFixture { _temp: temp, root, spec: SandboxSpec::default() }
    }

    fn path(&self, name: &str) -> Utf8PathBuf {
        self.root.join(name)
    }

    fn build(&self) -> Result<SandboxMounts, SandboxMountError> {
        SandboxMounts::build(&self.spec, &self.path("work"), &[])
    }

    #[track_caller]
    fn rule(&self, name: &str) -> Option<SandboxMount> {
        self.build().unwrap().rules.get(&self.path(name)).cloned()
    }
}

#[test]
fn commands_of_git_are_read_only_and_cannot_be_moved_aside() {
    let fixture = MountFixture::new();
    assert_eq!(fixture.rule("work"), Some(SandboxMount::Writable));
    assert_eq!(fixture.rule("work/.git/config"), Some(SandboxMount::ReadOnly));
    assert_eq!(fixture.rule("work/.git/hooks"), Some(SandboxMount::ReadOnly));
    assert_eq!(fixture.rule("work/.git"), Some(SandboxMount::Writable), "a mount of its own");
    std::fs::remove_dir(fixture.path("work/.git/hooks")).unwrap();
    std::fs::remove_file(fixture.path("work/.git/config")).unwrap();
    assert_eq!(fixture.rule("work/.git/hooks"), Some(SandboxMount::EmptyFolder));
    assert_eq!(fixture.rule("work/.git/config"), Some(SandboxMount::EmptyFile));
}

#[test]
fn hooks_behind_a_link_are_refused() {
    let fixture = MountFixture::new();
    std::fs::remove_dir(fixture.path("work/.git/hooks")).unwrap();
    std::os::unix::fs::symlink(fixture.path("secret"), fixture.path("work/.git/hooks")).unwrap();
    let refused = fixture.build().unwrap_err().to_string();
    assert!(refused.contains(".git/hooks is a symbolic link"), "{refused}");
}

#[test]
fn a_protected_file_is_a_mount_and_so_is_every_directory_above_it() {
    let mut fixture = MountFixture::new();
    std::fs::create_dir_all(fixture.path("work/a/b")).unwrap();
    std::fs::write(fixture.path("work/a/b/heeler.yaml"), "").unwrap();
    fixture.spec.protected =
        vec![fixture.path("work/a/b/heeler.yaml"), fixture.path("work/none"), "/etc/passwd".into()];
    assert_eq!(fixture.rule("work/a/b/heeler.yaml"), Some(SandboxMount::ReadOnly));
    assert_eq!(fixture.rule("work/a/b"), Some(SandboxMount::Writable));
    assert_eq!(fixture.rule("work/a"), Some(SandboxMount::Writable));
    assert_eq!(fixture.rule("work/none"), None, "what does not exist is not created");
    assert!(!fixture.build().unwrap().rules.contains_key(Utf8Path::new("/etc/passwd")));
}

#[test]
fn settings_of_claude_cannot_be_made_where_they_are_protected() {
    let mut fixture = MountFixture::new();
    fixture.spec.protected =
        vec![fixture.path("work/.claude"), fixture.path("secret/.claude"), "/none/.claude".into()];
    assert_eq!(fixture.rule("work/.claude"), Some(SandboxMount::EmptyFolder));
    assert_eq!(fixture.rule("secret/.claude"), None, "the agent cannot write there");
    std::fs::create_dir(fixture.path("work/.claude")).unwrap();
    assert_eq!(fixture.rule("work/.claude"), Some(SandboxMount::ReadOnly));
}

#[test]
fn a_link_of_the_agent_reveals_nothing_hidden() {
    let mut fixture = MountFixture::new();
    std::fs::create_dir_all(fixture.path("work/.heeler")).unwrap();
    std::fs::write(fixture.path("work/.heeler/heeler.db"), "").unwrap();
    fixture.spec.hidden = vec![fixture.path("work/.heeler")];
    // A protected name that the agent has replaced by a link to a hidden file.
    std::os::unix::fs::symlink(".heeler/heeler.db", fixture.path("work/CLAUDE.md")).unwrap();
    fixture.spec.protected = vec![fixture.path("work/CLAUDE.md")];
    assert_eq!(fixture.rule("work/.heeler"), Some(SandboxMount::EmptyFolder));
    assert_eq!(fixture.rule("work/.heeler/heeler.db"), None);
    // A directory that the config lets the agent write, replaced by a link.
    std::os::unix::fs::symlink(fixture.path("secret"), fixture.path("work/out")).unwrap();
    fixture.spec.writable = vec![fixture.path("work/out")];
    let refused = fixture.build().unwrap_err().to_string();
    assert!(refused.contains("work/out is a symbolic link"), "{refused}");
    // A link to what is hidden in the working directory itself, and a path behind one.
    std::os::unix::fs::symlink(".heeler", fixture.path("work/in")).unwrap();
    for name in ["work/in", "work/in/heeler.db", "work/none/../in"] {
        fixture.spec.writable = vec![fixture.path(name)];
        fixture.spec.readable = Vec::new();
        assert!(fixture.build().is_err(), "{name} is writable");
        fixture.spec.readable = std::mem::take(&mut fixture.spec.writable);
        assert!(fixture.build().is_err(), "{name} is readable");
    }
    // The config may name the working directory by a link, and a path with `..`.
    fixture.spec.readable = Vec::new();
    std::fs::create_dir(fixture.path("work/cache")).unwrap();
    std::os::unix::fs::symlink("work", fixture.path("alias")).unwrap();
    for name in ["work/cache", "alias/cache", "work/../work/cache", "work/.heeler/../cache"] {
        fixture.spec.writable = vec![fixture.path(name)];
        assert_eq!(fixture.rule("work/cache"), Some(SandboxMount::Writable), "{name}");
    }
    fixture.spec.writable = vec![fixture.path("work/../secret/deep")];
    assert_eq!(fixture.rule("secret/deep"), Some(SandboxMount::Writable));
}

#[test]
fn the_deeper_path_counts_and_a_missing_one_is_named() {
    let mut fixture = MountFixture::new();
    fixture.spec.hidden = vec![fixture.root.clone(), fixture.path("none")];
    fixture.spec.readable = vec![fixture.path("secret/deep")];
    let mounts = fixture.build().unwrap();
    assert!(!mounts.is_visible(&fixture.path("secret/key")));
    assert!(mounts.is_visible(&fixture.path("secret/deep/key")));
    assert!(mounts.is_visible(&fixture.path("work/file")));
    let order: Vec<&Utf8Path> = mounts.rules().map(|(path, _)| path).collect();
    let position = |path: &Utf8Path| order.iter().position(|it| *it == path);
    assert!(position(Utf8Path::new("/tmp")) < position(&fixture.path("work")));
    fixture.spec.writable = vec![fixture.path("none")];
    let refused = fixture.build().unwrap_err().to_string();
    assert!(refused.contains("none cannot be used in the sandbox"), "{refused}");
}

#[test]
fn only_listening_sockets_with_a_path_are_found() {
    let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
                 0000: 00000002 00000000 00010000 0001 01 100 /opt/db.sock\n\
                 0000: 00000002 00000000 00010000 0001 01 101 @abstract\n\
                 0000: 00000003 00000000 00000000 0001 03 102 /opt/connected\n\
                 0000: 00000003 00000000 00000000 0001 03 103\n";
    assert_eq!(listening_sockets(table).collect::<Vec<_>>(), ["/opt/db.sock"]);
}
