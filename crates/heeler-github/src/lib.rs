//! A small blocking client of GitHub's REST API.
//!
//! It authenticates as an App or with a token, follows pages, respects rate limits and bounds the
//! size of every response. It decides nothing about fleets. Start at [`GithubClient`].

mod app_key;
mod credentials;
mod discovery;
mod github_client;
mod github_error;
mod github_repo;
mod hook_deliveries;
mod http_exchange;
mod issues;
mod messages;
mod pull_requests;

pub use app_key::{AppKeyError, AppPrivateKey};
pub use credentials::{GithubCredentials, GithubRateLimit, InstallationToken, TokenRequest};
pub use discovery::{DiscoveredItem, DiscoveryQuery, DiscoveryTarget};
pub use github_client::{GithubClient, GithubClientConfig, HostClock};
pub use github_error::GithubError;
pub use github_repo::{GithubRepo, GithubRepoError};
pub use hook_deliveries::{GithubWebhook, HookDelivery, HookDeliveryRequest, WebhookOwner};
pub use issues::{GithubComment, GithubIssue, GithubLabelEvent, IssueListFilter, ReactionKind};
pub use messages::{GithubAuthor, GithubMessage, GithubMessageKind, GithubMessageList};
pub use pull_requests::{
    CheckConclusion, DiffSide, GithubChangedFile, GithubPullRequest, GithubReview, ReviewComment,
    ReviewDraft, ReviewEvent,
};
