//! Addresses of the dashboard's pages.

use heeler_config::{FleetConfig, WebPort};

/// Returns the address of a page of the dashboard, if the config tells where it is.
pub(crate) fn page_link(root: &FleetConfig, page: &str) -> Option<String> {
    let base = root.notify.as_ref().and_then(|notify| notify.link_base.as_ref());
    if let Some(base) = base {
        return Some(format!("{}{page}", base.as_str()));
    }
    if !root.web.enabled {
        return None;
    }
    if let Some(origin) = root.web.origins.first() {
        return Some(format!("{}{page}", origin.as_str()));
    }
    match root.web.port {
        WebPort::Fixed(port) => Some(format!("http://{}:{port}{page}", root.web.host)),
        WebPort::Auto => None,
    }
}
