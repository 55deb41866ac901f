//! Attacks from the network: webhooks, logins, cookies and connection limits.
