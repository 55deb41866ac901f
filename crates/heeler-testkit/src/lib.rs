//! Shared test tools: simulated disks, proof settings, a fake Messages API, a fake GitHub, a fake
//! Telegram, a fake Slack, a fake Discord, receivers of webhooks, of mail and of
//! pushed messages, a git server, the real
//! claude, real container engines, a real PostgreSQL.
#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod claude;
mod disk;
mod disk_crash;
mod disk_hook;
mod fake_discord;
mod fake_files;
mod fake_form;
mod fake_github;
mod fake_push;
mod fake_s3;
mod fake_server;
mod fake_slack;
mod fake_smtp;
mod fake_sockets;
mod fake_telegram;
mod fake_transcription;
mod fake_webhook;
mod git_server;
mod messages_api;
mod podman_engine;
mod postgres;
mod postgres_relay;
mod proof;
mod test_certificates;
mod test_engine;

use std::time::Duration;

pub use claude::{
    axe, claude, claude_acp, codex, codex_acp, copilot, gemini, goose, grok, kimi, node, opencode,
    qwen, vibe,
};
pub use disk::{SimDisk, SimulatedFault};
pub use disk_crash::CrashState;
pub use disk_hook::{DiskHook, HookedDisk};
pub use fake_discord::{DiscordFailure, DiscordPost, FakeDiscord};
pub use fake_github::{FakeGithub, GithubFailure};
pub use fake_push::{FakePushService, PushSubscription, ReceivedPush};
pub use fake_s3::{FakeS3, S3Failure};
pub use fake_slack::{FakeSlack, SlackFailure, SlackHttpCall, SlackPost};
pub use fake_smtp::{FakeSmtp, ReceivedMail, SmtpEncryption};
pub use fake_telegram::{FakeTelegram, TelegramFailure, TelegramPost};
pub use fake_transcription::{FakeTranscription, ReceivedVoice};
pub use fake_webhook::{FakeWebhook, ReceivedNotice};
pub use git_server::GitServer;
pub use messages_api::{ApiRequest, MessagesApi, ModelScript, ModelScriptStep, ModelToolCall};
pub use podman_engine::PodmanEngine;
pub use postgres::{
    NetworkAccess, PostgresCluster, PostgresPool, create_database, drop_database,
    wait_for_transactions,
};
pub use postgres_relay::{NetworkState, PostgresRelay};
pub use proof::ProofSettings;
pub use test_certificates::TestCertificates;
pub use test_engine::{EngineRestart, TEST_IMAGE, TEST_VOLUME, TestEngine};

/// Longest time that a test waits for an event before it fails. It ends tests that hang, so it is
/// far longer than a slow machine needs.
pub const WAIT_MAX: Duration = Duration::from_secs(120);
