//! A real PostgreSQL server for tests: a private cluster in a temporary folder, on a unix socket or on
//! the network, and a connection pool before it.
//!
//! `initdb` refuses to run as root. Root therefore starts the server as `postgres` or `nobody`. A replica follows a
//! cluster by streaming replication, and can take its place. Start at [`PostgresCluster::start`].

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use tempfile::TempDir;

use crate::WAIT_MAX;
use crate::test_certificates::make_certificates;

/// Name of the superuser of the cluster.
const USER: &str = "heeler";

/// Folders of Debian's packages, which are not in `PATH`.
const PACKAGE_FOLDER: &str = "/usr/lib/postgresql";

/// A server that ends with this value. Its socket is open to every user of the machine, like the
/// folder that it is in: tests hold no secrets.
#[derive(Debug)]
pub struct PostgresCluster {
    folder: TempDir,
    server: Option<Child>,
    network: Option<NetworkAccess>,
}

/// TCP port of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetworkAccess {
    pub port: u16,
    /// True if the server offers TLS, with a certificate for 0.0.0.0 by [`PostgresCluster::ca_file`].
    pub has_tls: bool,
}

/// Port that names the socket.
const PORT: u16 = 5432;

/// Name of the socket of that port.
pub(crate) const SOCKET_NAME: &str = ".s.PGSQL.5432";

impl PostgresCluster {
    /// Creates a cluster and starts it.
    pub fn start() -> PostgresCluster {
        let mut cluster = PostgresCluster::create();
        cluster.start_server();
        cluster
    }

    /// Creates a cluster that also listens on a TCP port, and asks for passwords there, and starts it.
    pub fn start_on_network(has_tls: bool) -> PostgresCluster {
        let mut cluster = PostgresCluster::create();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        cluster.network = Some(NetworkAccess { port, has_tls });
        let rule = "host all all 127.0.0.1/32 scram-sha-256\n";
        let path = cluster.data().join("pg_hba.conf");
        std::fs::write(path, format!("local all all trust\n{rule}")).unwrap();
        // A client takes this address for one of another machine, and the kernel for this machine.
        make_certificates(cluster.root(), "IP:0.0.0.0", program);
        drop(free);
        cluster.start_server();
        cluster
    }

    /// Returns the certificate of the authority that signed the server's certificate.
    pub fn ca_file(&self) -> Utf8PathBuf {
        self.root().join("authority.crt")
    }

    /// Returns the TCP port, if the cluster has one.
    pub fn network(&self) -> Option<NetworkAccess> {
        self.network
    }

    /// Starts a replica that follows this server, on a socket of its own. It has all that was committed
    /// before.
    pub fn start_replica(&self) -> PostgresCluster {
        let mut replica = PostgresCluster::without_data();
        let data = replica.data();
        let copied = program("pg_basebackup")
            .args(["--host", self.socket_folder().as_str(), "--port", &self.port().to_string()])
            .args(["--username", USER, "--pgdata", data.as_str(), "--checkpoint=fast"])
            .args(["--wal-method=stream", "--write-recovery-conf", "--no-sync"])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
        replica.start_server();
        let last = self.query("postgres", "SELECT pg_current_wal_lsn()");
        replica.wait_for(&format!("SELECT pg_last_wal_replay_lsn() >= '{last}'"));
        replica
    }

    /// Lets each commit wait until its replica has it.
    pub fn replicate_synchronously(&self) {
        self.query("postgres", "ALTER SYSTEM SET synchronous_standby_names = '*'");
        self.query("postgres", "SELECT pg_reload_conf()");
        self.wait_for("SELECT COUNT(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'");
        // The process that makes it tells the others before, that commits have to wait.
        self.query("postgres", "CHECKPOINT");
    }

    /// Lets this replica miss all later commits.
    pub fn stop_following(&self) {
        self.query("postgres", "ALTER SYSTEM SET primary_conninfo = ''");
        self.query("postgres", "SELECT pg_reload_conf()");
        self.wait_for("SELECT COUNT(*) = 0 FROM pg_stat_wal_receiver");
    }

    /// Makes this replica the server that is written to.
    pub fn promote(&self) {
        self.query("postgres", "SELECT pg_promote(true, 300)");
        self.wait_for("SELECT NOT pg_is_in_recovery()");
    }

    /// Waits until a statement returns true.
    fn wait_for(&self, sql: &str) {
        let deadline = Instant::now() + WAIT_MAX;
        while self.query("postgres", sql) != "t" {
            assert!(Instant::now() < deadline, "{sql}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn without_data() -> PostgresCluster {
        let folder = tempfile::Builder::new().prefix("heeler-pg-").tempdir().unwrap();
        let mode = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(folder.path(), mode).unwrap();
        PostgresCluster { folder, server: None, network: None }
    }

    fn create() -> PostgresCluster {
        let cluster = PostgresCluster::without_data();
        let data = cluster.data();
        let made = program("initdb")
            .args(["--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C"])
            .args(["--username", USER, "--pgdata", data.as_str()])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        cluster
    }

    fn port(&self) -> u16 {
        self.network.map_or(PORT, |network| network.port)
    }

    fn root(&self) -> &Utf8Path {
        Utf8Path::from_path(self.folder.path()).unwrap()
    }

    fn data(&self) -> Utf8PathBuf {
        self.root().join("data")
    }

    /// Returns the folder of the socket.
    pub fn socket_folder(&self) -> &Utf8Path {
        self.root()
    }

    /// Returns the path of the socket.
    pub fn socket(&self) -> Utf8PathBuf {
        self.root().join(format!(".s.PGSQL.{}", self.port()))
    }

    /// Returns the URL of a database.
    pub fn url(&self, database: &str) -> String {
        let port = self.network.map(|network| format!("&port={}", network.port));
        format!("{}{}", url_of(self.socket_folder(), database), port.unwrap_or_default())
    }

    /// Starts the server again after [`PostgresCluster::kill`], and waits until it answers.
    pub fn start_server(&mut self) {
        let path = self.root().join("log");
        let log = std::fs::File::options().create(true).append(true).open(path).unwrap();
        let socket = format!("unix_socket_directories={}", self.root());
        let mut command = program("postgres");
        command.args(["-D", self.data().as_str(), "-c", &socket, "-p", &self.port().to_string()]);
        match self.network {
            None => command.args(["-c", "listen_addresses="]),
            Some(_) => command.args(["-c", "listen_addresses=127.0.0.1"]),
        };
        if self.network.is_some_and(|network| network.has_tls) {
            let root = self.root();
            let (key, certificate) = (
                format!("ssl_key_file={root}/server.key"),
                format!("ssl_cert_file={root}/server.crt"),
            );
            command.args(["-c", "ssl=on", "-c", &key, "-c", &certificate]);
        }
        let server = command
            .args(["-c", "fsync=off", "-c", "max_connections=200", "-c", "shared_buffers=16MB"])
            // Many tests share the server; each needs a few connections.
            .args(["-c", "unix_socket_permissions=0777"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.server = Some(server);
        let deadline = Instant::now() + WAIT_MAX;
        while !self.try_run("postgres", "SELECT 1") {
            let log = std::fs::read_to_string(self.root().join("log")).unwrap();
            assert!(Instant::now() < deadline, "the server does not answer:\n{log}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Kills the server and all its processes, as a crash of the machine would.
    pub fn kill(&mut self) {
        // The other processes of the server end when they notice; `initdb` made no others.
        let Some(mut server) = self.server.take() else { return };
        server.kill().unwrap();
        server.wait().unwrap();
        // They hold the data directory until they have ended, and a new server waits for that.
        let deadline = Instant::now() + WAIT_MAX;
        while self.has_processes() {
            assert!(Instant::now() < deadline, "processes of the server do not end");
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(std::fs::remove_file(self.data().join("postmaster.pid")));
    }

    /// Returns true if a process works in the data directory.
    fn has_processes(&self) -> bool {
        let data = self.data();
        let Ok(processes) = std::fs::read_dir("/proc") else { return false };
        processes.flatten().any(|process| {
            let folder = std::fs::read_link(process.path().join("cwd"));
            folder.is_ok_and(|folder| folder == data.as_std_path())
        })
    }

    /// Creates an empty database.
    pub fn create_database(&self, name: &str) {
        self.query("postgres", &format!("CREATE DATABASE {name} TEMPLATE template0"));
    }

    /// Returns all that a database contains, as `pg_dump` writes it.
    pub fn dump(&self, database: &str) -> Vec<u8> {
        let output = program("pg_dump")
            .args(["--host", self.socket_folder().as_str(), "--port", &self.port().to_string()])
            .args(["--username", USER, "--dbname", database])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    fn try_run(&self, database: &str, sql: &str) -> bool {
        psql(self.socket_folder(), self.port(), database, sql).status.success()
    }

    /// Runs a statement as the superuser, and returns the result as text.
    pub fn query(&self, database: &str, sql: &str) -> String {
        query(self.socket_folder(), self.port(), database, sql)
    }
}

impl Drop for PostgresCluster {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            // An immediate shutdown: nothing is needed any more.
            let pid = rustix::process::Pid::from_child(&server);
            // It may have ended by itself.
            let _sent = rustix::process::kill_process(pid, rustix::process::Signal::QUIT);
            drop(server.wait());
        }
    }
}

/// PgBouncer before a cluster, on a unix socket of its own; ends with this value.
#[derive(Debug)]
pub struct PostgresPool {
    folder: TempDir,
    process: Child,
}

impl PostgresPool {
    /// Starts a pool that gives a session to each transaction. `more` is added to its settings.
    pub fn start(cluster: &PostgresCluster, more: &str) -> PostgresPool {
        let folder = tempfile::Builder::new().prefix("heeler-pool-").tempdir().unwrap();
        let mode = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(folder.path(), mode).unwrap();
        let root = Utf8Path::from_path(folder.path()).unwrap().to_owned();
        let settings = format!(
            "[databases]\n* = host={} port={} user={USER}\n[pgbouncer]\nunix_socket_dir = {root}\n\
             listen_addr =\nlisten_port = {PORT}\nauth_type = any\npool_mode = transaction\n{more}\n",
            cluster.socket_folder(),
            cluster.port(),
        );
        let file = root.join("pgbouncer.ini");
        std::fs::write(&file, settings).unwrap();
        let log = std::fs::File::create(root.join("log")).unwrap();
        let process = program("pgbouncer").arg(&file).stderr(log).spawn().unwrap();
        let deadline = Instant::now() + WAIT_MAX;
        while !root.join(format!(".s.PGSQL.{PORT}")).exists() {
            let log = std::fs::read_to_string(root.join("log")).unwrap();
            assert!(Instant::now() < deadline, "the pool does not start:\n{log}");
            std::thread::sleep(Duration::from_millis(20));
        }
        PostgresPool { folder, process }
    }

    /// Returns the URL of a database behind the pool.
    pub fn url(&self, database: &str) -> String {
        url_of(Utf8Path::from_path(self.folder.path()).unwrap(), database)
    }
}

impl Drop for PostgresPool {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

pub(crate) fn url_of(socket_folder: &Utf8Path, database: &str) -> String {
    format!("postgres://{USER}@/{database}?host={socket_folder}")
}

/// Creates an empty database on the server with this socket folder; returns its URL.
pub fn create_database(socket_folder: &Utf8Path, name: &str) -> String {
    query(socket_folder, PORT, "postgres", &format!("CREATE DATABASE {name} TEMPLATE template0"));
    url_of(socket_folder, name)
}

/// Removes a database, also while it is used.
pub fn drop_database(socket_folder: &Utf8Path, name: &str) {
    // It may be gone.
    drop(psql(
        socket_folder,
        PORT,
        "postgres",
        &format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"),
    ));
}

/// Waits until no connection to a database has an open transaction: those of a killed process end on
/// their own.
pub fn wait_for_transactions(socket_folder: &Utf8Path, name: &str) {
    let open = format!(
        "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = '{name}' AND xact_start IS NOT NULL"
    );
    let deadline = Instant::now() + WAIT_MAX;
    while query(socket_folder, PORT, "postgres", &open) != "0" {
        assert!(Instant::now() < deadline, "transactions do not end");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn psql(socket_folder: &Utf8Path, port: u16, database: &str, sql: &str) -> std::process::Output {
    program("psql")
        .args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1"])
        .args([
            "--host",
            socket_folder.as_str(),
            "--port",
            &port.to_string(),
            "--username",
            USER,
            "--dbname",
            database,
        ])
        .args(["--command", sql])
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn query(socket_folder: &Utf8Path, port: u16, database: &str, sql: &str) -> String {
    let output = psql(socket_folder, port, database, sql);
    assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

/// Returns a command for a program of PostgreSQL, as a user that it accepts.
#[expect(clippy::disallowed_methods, reason = "a server of a test, not of a fleet")]
fn program(name: &str) -> Command {
    let mut command = Command::new(find_program(name));
    command.current_dir("/").env_remove("PGOPTIONS").env_remove("PGPASSFILE");
    if rustix::process::geteuid().is_root() {
        let (user, group) = unprivileged_user();
        command.uid(user).gid(group);
    }
    command
}

fn find_program(name: &str) -> Utf8PathBuf {
    let versions = Utf8Path::new(PACKAGE_FOLDER).read_dir_utf8().into_iter().flatten().flatten();
    let mut found: Vec<Utf8PathBuf> = versions
        .map(|version| version.path().join("bin").join(name))
        .filter(|path| path.exists())
        .collect();
    found.sort();
    // Debian's pool is not in the `PATH` of all users.
    let system = Utf8Path::new("/usr/sbin").join(name);
    found.extend(system.exists().then_some(system));
    // Elsewhere the programs are in `PATH`. A missing one fails the test: `cargo xtask setup`.
    found.pop().unwrap_or_else(|| name.into())
}

/// Returns the user and group ID of `postgres`, or of `nobody`.
fn unprivileged_user() -> (u32, u32) {
    let users = std::fs::read_to_string("/etc/passwd").unwrap();
    let find = |name: &str| {
        users.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let [user, _, id, group, ..] = fields[..] else { return None };
            (user == name).then(|| (id.parse().unwrap(), group.parse().unwrap()))
        })
    };
    find("postgres").or_else(|| find("nobody")).unwrap()
}
