//! The target of a URL: one server, the primary that sentinels name, or a cluster.

use super::{settings::Settings, spelling, stream::Address};
use crate::{
    backend::{
        host::{SENTINEL_PORT, with_port},
        options::ConnectOptions,
    },
    error::BuildError,
};

/// The servers of a URL.
pub(super) enum Target {
    Server(Settings),
    /// The primary of a service, by those who know it.
    Service {
        service: String,
        sentinels: Vec<Settings>,
        primary: Settings,
    },
    /// Some nodes of a cluster.
    Cluster {
        seeds: Vec<Address>,
        settings: Settings,
    },
}

/// A URL of several hosts: `scheme+kind://credentials@host,host/path?parameters`.
struct Several<'a> {
    /// The scheme of one of them.
    scheme: &'a str,
    /// With the `@` behind it, if there are any.
    credentials: &'a str,
    hosts: Vec<&'a str>,
    path: &'a str,
    /// The part behind the `?`.
    options: &'a str,
}

impl Target {
    /// Reads a URL. Nothing of it but hosts, ports and the name of a service may get into an error: it may hold a password.
    pub(super) fn from_url(url: &str, options: &ConnectOptions) -> Result<Self, BuildError> {
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        let names_several = matches!(scheme.split_once('+'), Some((_, "sentinel" | "cluster")));
        if let Some(what) = spelling::fragment(url).filter(|_| names_several) {
            return Err(wrong(what));
        }
        match scheme.split_once('+') {
            Some((scheme, "sentinel")) => Several::read(scheme, rest)?.service(options),
            Some((scheme, "cluster")) => Several::read(scheme, rest)?.cluster(options),
            _ => Settings::from_url(url, options).map(Self::Server),
        }
    }
}

impl<'a> Several<'a> {
    fn read(scheme: &'a str, rest: &'a str) -> Result<Self, BuildError> {
        if let Some(what) = spelling::hosts_of_several(rest) {
            return Err(wrong(what));
        }
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (credentials, hosts) = match authority.rsplit_once('@') {
            Some((credentials, hosts)) => (&authority[..=credentials.len()], hosts),
            None => ("", authority),
        };
        let hosts: Vec<_> = hosts.split(',').collect();
        if hosts.iter().any(|host| host.is_empty()) {
            return Err(wrong("a host is missing between the commas; write HOST:PORT,HOST:PORT"));
        }
        Ok(Self { scheme, credentials, hosts, path, options })
    }

    fn cluster(self, options: &ConnectOptions) -> Result<Target, BuildError> {
        if !matches!(self.path, "" | "0") || options.database.is_some_and(|database| database != 0) {
            return Err(wrong("a cluster has only database 0; leave the database out"));
        }
        let protocol = self.protocol(&[])?;
        let nodes = self.hosts.iter().map(|host| self.settings(self.credentials, host, &protocol, options));
        let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
        let settings = nodes.first().cloned().ok_or_else(|| wrong("it names no host"))?;
        Ok(Target::Cluster { seeds: nodes.into_iter().map(|node| node.address).collect(), settings })
    }

    fn service(self, options: &ConnectOptions) -> Result<Target, BuildError> {
        let service = self.path;
        // Before anything of the path is shown: with a ? and an @ behind it, it may be a part of a password.
        let protocol = self.protocol(&["db", "sentinel_user", "sentinel_pass"])?;
        if let Some((service, more)) = service.split_once('/')
            && !service.is_empty()
            && !service.bytes().all(|byte| byte.is_ascii_digit())
            && more.bytes().all(|byte| byte.is_ascii_digit())
        {
            let what =
                if more.is_empty() { "leave it out".to_owned() } else { format!("the database is written ?db={more}") };
            return Err(wrong(&format!("after the service comes \"/{more}\"; {what}")));
        }
        if service.is_empty() || service.contains('/') {
            return Err(wrong(
                "the name of the service is missing after the sentinels; write redis+sentinel://HOST,HOST,HOST/SERVICE, with \
                 the name under which the sentinels know the primary",
            ));
        }
        if !service.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte)) {
            return Err(wrong("the name of the service has characters other than A-z, 0-9, `.`, `-` and `_`"));
        }
        let database = self.parameter("db").map_or(String::new(), |database| format!("/{database}"));
        let credentials = self.credentials_of_sentinels(options)?;
        // The builder's other settings of user and database are about the servers.
        let of_sentinels = options.of_sentinels();
        let sentinels = self
            .hosts
            .iter()
            .map(|host| self.settings(&credentials, &with_port(host, SENTINEL_PORT), &protocol, &of_sentinels));
        let sentinels = sentinels.collect::<Result<Vec<_>, _>>()?;
        // The sentinels say where it is.
        let primary = self.settings(self.credentials, &format!("{}{database}", self.hosts[0]), &protocol, options)?;
        Ok(Target::Service { service: service.to_owned(), sentinels, primary })
    }

    /// User and password of the sentinels as they stand before a host. Those of the builder replace them.
    fn credentials_of_sentinels(&self, options: &ConnectOptions) -> Result<String, BuildError> {
        let (user, password) = (self.parameter("sentinel_user"), self.parameter("sentinel_pass"));
        let has_user = user.is_some() || options.sentinel_username.is_some();
        if has_user && password.is_none() && options.sentinel_password.is_none() {
            return Err(wrong(
                "it or the builder has a user of the sentinels, and no password of theirs; add `sentinel_pass` to the URL, or \
                 give the builder a `sentinel_password`",
            ));
        }
        Ok(match password {
            Some(password) => format!("{}:{password}@", user.unwrap_or_default()),
            None => user.map_or_else(String::new, |user| format!("{user}@")),
        })
    }

    /// The settings of one of the hosts.
    fn settings(
        &self,
        credentials: &str,
        host: &str,
        protocol: &str,
        options: &ConnectOptions,
    ) -> Result<Settings, BuildError> {
        Settings::from_url(&format!("{}://{credentials}{host}{protocol}", self.scheme), options)
    }

    /// The parameter for the protocol, after a look at the names of the others.
    fn protocol(&self, others: &[&str]) -> Result<String, BuildError> {
        if let Some(what) = spelling::option(self.options, &[others, &["protocol"]].concat()) {
            return Err(wrong(&what));
        }
        Ok(self.parameter("protocol").map_or(String::new(), |protocol| format!("?protocol={protocol}")))
    }

    fn parameter(&self, name: &str) -> Option<&'a str> {
        let mut options = self.options.split('&').map(|option| option.split_once('=').unwrap_or((option, "")));
        options.find(|(known, _)| *known == name).map(|(_, value)| value)
    }
}

fn wrong(what: &str) -> BuildError {
    BuildError::new(format!("the URL of the Redis servers is wrong: {what}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::backend::timeouts::Timeouts;

    fn read(url: &str) -> Result<Target, BuildError> {
        let timeouts = Timeouts { command: Duration::from_secs(1), connect: Duration::from_secs(1) };
        Target::from_url(url, &ConnectOptions::new("test", timeouts))
    }

    fn refusal(url: &str) -> String {
        let error = read(url).err().expect("no such servers");
        assert!(!format!("{error} {error:?}").contains("secret"), "no password in an error");
        error.to_string()
    }

    #[test]
    fn a_password_that_was_not_encoded_is_not_shown_wherever_its_signs_lead() {
        for url in [
            "redis+sentinel://:p/w/987654321?@host,host2/shop",
            "redis+sentinel://user:123/987654321?&=@host/shop",
            "redis+cluster://user:123/987654321?&=@host",
            "redis://user:123?=987654321@host",
            "unix://localhost/p/987654321@/run/x",
        ] {
            let error = read(url).err().unwrap_or_else(|| panic!("{url} is taken"));
            assert!(!format!("{error} {error:?}").contains("987654321"), "{error:?}");
        }
    }

    #[test]
    fn sentinels_are_named_with_the_service_that_they_watch() {
        let url = "redis+sentinel://app:secret@a,b:7,[::1]/shop?db=3&sentinel_user=watch&sentinel_pass=s%40cret";
        let Ok(Target::Service { service, sentinels, primary }) = read(url) else { panic!("a valid URL") };
        let addresses: Vec<_> = sentinels.iter().map(|sentinel| sentinel.address.to_string()).collect();
        assert_eq!((service.as_str(), addresses.join(" ").as_str()), ("shop", "a:26379 b:7 ::1:26379"));
        let redis = &primary.access.redis;
        assert_eq!((redis.username(), redis.password(), redis.db()), (Some("app"), Some("secret"), 3));
        let redis = &sentinels[1].access.redis;
        assert_eq!((redis.username(), redis.password(), redis.db()), (Some("watch"), Some("s@cret"), 0));
        let Ok(Target::Service { sentinels, .. }) = read("valkey+sentinel://:secret@a/shop") else {
            panic!("a valid URL")
        };
        assert_eq!(sentinels[0].access.redis.password(), None, "the password is that of the servers");
    }

    #[test]
    fn user_and_password_of_the_sentinels_that_the_builder_names_replace_those_of_the_url() {
        let with = |url: &str, user: Option<&str>, password: Option<&str>| {
            let timeouts = Timeouts { command: Duration::from_secs(1), connect: Duration::from_secs(1) };
            let mut options = ConnectOptions::new("test", timeouts);
            options.username = Some("app".to_owned());
            options.password = Some("secret".to_owned());
            options.sentinel_username = user.map(str::to_owned);
            options.sentinel_password = password.map(str::to_owned);
            match Target::from_url(url, &options) {
                Ok(Target::Service { sentinels, primary, .. }) => {
                    assert_eq!(primary.access.redis.password(), Some("secret"));
                    let redis = &sentinels[0].access.redis;
                    format!("{} {}", redis.username().unwrap_or("-"), redis.password().unwrap_or("-"))
                }
                Ok(_) => panic!("sentinels"),
                Err(error) => error.to_string(),
            }
        };
        let url = "redis+sentinel://a,b/shop";
        assert_eq!(with(url, None, None), "- -", "those of the servers do not count");
        assert_eq!(with(url, Some("watch"), Some("p@ss")), "watch p@ss");
        assert_eq!(with(&format!("{url}?sentinel_user=watch"), None, Some("p@ss")), "watch p@ss");
        assert_eq!(with(&format!("{url}?sentinel_pass=p%40ss"), Some("watch"), Some("p@ss")), "watch p@ss");
        assert!(with(url, Some("watch"), None).contains("a `sentinel_password`"));
        assert_eq!(with(&format!("{url}?sentinel_pass=secret"), None, Some("p@ss")), "- p@ss");
        assert_eq!(with(&format!("{url}?sentinel_user=u&sentinel_pass=p"), Some("v"), None), "v p");
    }

    #[test]
    fn nodes_of_a_cluster_share_what_the_url_says() {
        let Ok(Target::Cluster { seeds, settings }) = read("redis+cluster://u:secret@a:7000,b?protocol=resp2") else {
            panic!("a valid URL")
        };
        let seeds: Vec<_> = seeds.iter().map(ToString::to_string).collect();
        assert_eq!(seeds, ["a:7000", "b:6379"]);
        assert_eq!((settings.access.redis.username(), settings.access.resp2), (Some("u"), true));
    }

    #[test]
    fn urls_that_would_be_misread_are_refused() {
        for (url, words) in [
            ("redis+sentinel://u:secret@a,b", "name of the service is missing"),
            ("redis+sentinel://u:secret@a,b/", "name of the service is missing"),
            ("redis+sentinel://u:secret@a,b/0/shop", "name of the service is missing"),
            ("redis+sentinel://u:secret@a,,b/shop", "a host is missing"),
            ("redis+sentinel://u:secret@a/shop?sentinel_user=x", "add `sentinel_pass`"),
            ("redis+sentinel://u:secret@a/shop?password=secret", "other than `db`"),
            ("redis+sentinel://u:secret@a/shop?db=x", "URL"),
            ("redis+sentinel://u:secret@a:x/shop", "port"),
            ("redis+cluster://u:secret@a/3", "only database 0"),
            ("redis+cluster://u:secret@a?db=3", "other than `protocol`"),
            ("redis+cluster://u:secret@", "a host is missing"),
            ("redis+cluster://u:secret@a#b", "fragment"),
            ("rediss+cluster://u:secret@a/#insecure", "`#insecure` is not supported; use `.tls(..)`"),
            ("redis+cluster://:secret/x@a", "in a password, @ : / % # are written %40"),
            ("redis+sentinel://:secret/x@a/shop", "in a password, @ : / % # are written %40"),
            ("redis+cluster://:secret@a,redis://:secret@b", "the scheme is written once"),
            ("redis+cluster://a,redis+cluster://b", "the scheme is written once"),
            ("redis+sentinel://a/shop/", "after the service comes \"/\"; leave it out"),
            ("redis+sentinel://a/shop/2", "after the service comes \"/2\"; the database is written ?db=2"),
            ("redis+sentinel://a/shop?sentinel_password=secret", "after the ? it has `sentinel_password`, an option"),
        ] {
            assert!(refusal(url).contains(words), "{url}: {}", refusal(url));
        }
    }
}
