//! Files that pages load: styles and scripts, embedded in the program.
//!
//! Their URLs contain a hash of all files, so that browsers may cache them forever and still load a
//! new version at once. Modules import each other by plain names, relative to their own URL.

use std::sync::LazyLock;

use sha2::{Digest as _, Sha256};

/// File that pages load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StaticAsset {
    pub name: &'static str,
    pub media_type: &'static str,
    pub bytes: &'static [u8],
}

const SCRIPT: &str = "text/javascript; charset=utf-8";

macro_rules! asset {
    ($name:literal, $media_type:expr) => {
        StaticAsset {
            name: $name,
            media_type: $media_type,
            bytes: include_bytes!(concat!("../assets/", $name)),
        }
    };
}

/// All embedded files.
pub const ALL_ASSETS: &[StaticAsset] = &[
    asset!("style.css", "text/css; charset=utf-8"),
    asset!("theme.js", SCRIPT),
    asset!("app.js", SCRIPT),
    asset!("act.js", SCRIPT),
    asset!("api.js", SCRIPT),
    asset!("live.js", SCRIPT),
    asset!("nav.js", SCRIPT),
    asset!("time.js", SCRIPT),
    asset!("work.css", "text/css; charset=utf-8"),
    asset!("palette.js", SCRIPT),
    asset!("config.js", SCRIPT),
    asset!("config-form.js", SCRIPT),
    asset!("manifest.webmanifest", "application/manifest+json"),
    asset!("transcript.js", SCRIPT),
    asset!("answer.js", SCRIPT),
    asset!("icon.svg", "image/svg+xml"),
    asset!("push.js", SCRIPT),
    asset!("worker.js", SCRIPT),
];

static VERSION: LazyLock<String> = LazyLock::new(|| {
    let mut hash = Sha256::new();
    // One hash for all, because modules import each other without a hash in the name.
    for asset in ALL_ASSETS {
        hash.update(asset.name);
        hash.update(asset.bytes);
    }
    // 48 bits are enough to tell builds apart.
    hash.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect()
});

/// Returns the version segment of all asset URLs in this build.
pub fn version() -> &'static str {
    &VERSION
}

/// Returns the URL of a file.
pub fn href(name: &str) -> String {
    debug_assert!(find(name).is_some(), "{name} is no asset");
    format!("/assets/{}/{name}", version())
}

pub fn find(name: &str) -> Option<&'static StaticAsset> {
    ALL_ASSETS.iter().find(|asset| asset.name == name)
}
