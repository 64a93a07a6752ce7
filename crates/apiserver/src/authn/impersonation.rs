//! Impersonation: `Impersonate-User`, `-Group`, `-Uid` and `-Extra-<key>`, each allowed by itself.

use std::collections::BTreeMap;

use http::HeaderMap;
use knarr_api::Error;

use crate::authz::{Attributes, Authorizer, forbidden};
use crate::user::{ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED, User};

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";

/// What is asked for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wanted {
    user: String,
    groups: Vec<String>,
    uid: String,
    extra: BTreeMap<String, Vec<String>>,
}

impl Wanted {
    fn read(headers: &HeaderMap) -> Self {
        let text = |name: &str| {
            let value = headers.get(name).and_then(|v| v.to_str().ok());
            value.unwrap_or_default().to_string()
        };
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, value) in headers {
            if let (Some(key), Ok(value)) = (name.as_str().strip_prefix(EXTRA), value.to_str()) {
                let key = percent_encoding::percent_decode_str(key).decode_utf8_lossy();
                extra.entry(key.into_owned()).or_default().push(value.into());
            }
        }
        Wanted {
            user: text(USER),
            groups: headers
                .get_all(GROUP)
                .iter()
                .filter_map(|v| v.to_str().ok().map(str::to_string))
                .collect(),
            uid: text(UID),
            extra,
        }
    }

    /// `system:serviceaccount:<namespace>:<name>`.
    fn service_account(&self) -> Option<(&str, &str)> {
        let (namespace, name) = self
            .user
            .strip_prefix("system:serviceaccount:")?
            .split_once(':')?;
        let fine = !namespace.is_empty() && !name.is_empty() && !name.contains(':');
        fine.then_some((namespace, name))
    }

    /// What must be allowed, one after another.
    fn requests(&self) -> Vec<Attributes<'_>> {
        let ask = |group, resource, subresource, namespace, name| Attributes {
            verb: "impersonate",
            group,
            resource,
            subresource,
            namespace,
            name,
            ..Attributes::default()
        };
        let authentication = "authentication.k8s.io";
        let mut all = vec![match self.service_account() {
            Some((namespace, name)) => ask("", "serviceaccounts", "", namespace, name),
            None => ask("", "users", "", "", self.user.as_str()),
        }];
        all.extend(self.groups.iter().map(|g| ask("", "groups", "", "", g)));
        for (key, values) in &self.extra {
            let asks = values
                .iter()
                .map(|v| ask(authentication, "userextras", key, "", v));
            all.extend(asks);
        }
        if !self.uid.is_empty() {
            all.push(ask(authentication, "uids", "", "", &self.uid));
        }
        all
    }

    fn user(self) -> User {
        let account = self.service_account().map(|(namespace, _)| namespace.to_string());
        let mut user = User::new(self.user.clone(), self.groups);
        if let Some(namespace) = account.filter(|_| user.groups.is_empty()) {
            user.groups = User::service_account(&namespace, "", "").groups;
        }
        user.uid = self.uid;
        user.extra = self.extra;
        if self.user == ANONYMOUS {
            if !user.is_in(UNAUTHENTICATED) {
                user.groups.push(UNAUTHENTICATED.into());
            }
        } else if !user.is_in(AUTHENTICATED) && !user.is_in(UNAUTHENTICATED) {
            user.groups.push(AUTHENTICATED.into());
        }
        user
    }
}

/// The user as whom a request is made: `user`, unless the headers ask for another and `user` may be that one.
pub(super) fn impersonated(
    headers: &HeaderMap,
    user: User,
    authorizer: &dyn Authorizer,
) -> Result<(User, Option<User>), Error> {
    let wanted = Wanted::read(headers);
    if wanted == Wanted::default() {
        return Ok((user, None));
    }
    if wanted.user.is_empty() {
        return Err(Error::internal(
            "requested impersonation of groups, a uid or extra fields without impersonating a user",
        ));
    }
    if let Some(refused) = wanted
        .requests()
        .iter()
        .find(|request| !authorizer.allows(&user, request))
    {
        return Err(forbidden(&user, refused));
    }
    Ok((wanted.user(), Some(user)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Allows what its list names as `group/resource/subresource/namespace/name`.
    struct Only(&'static [&'static str]);

    impl Authorizer for Only {
        fn allows(&self, _: &User, r: &Attributes<'_>) -> bool {
            let asked = [r.group, r.resource, r.subresource, r.namespace, r.name].join("/");
            r.verb == "impersonate" && self.0.contains(&asked.as_str())
        }
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn each_thing_that_is_asked_for_must_be_allowed() {
        let all = headers(&[
            (USER, "bob"),
            (GROUP, "ops"),
            (GROUP, "dev"),
            (UID, "7"),
            ("impersonate-extra-scopes%2fa", "view"),
        ]);
        const NEEDED: [&str; 5] = [
            "/users///bob",
            "/groups///ops",
            "/groups///dev",
            "authentication.k8s.io/userextras/scopes/a//view",
            "authentication.k8s.io/uids///7",
        ];
        let ask = |allowed| impersonated(&all, User::new("root", ["x"]), &Only(allowed));
        let (bob, by) = ask(&NEEDED).unwrap();
        assert_eq!(bob.groups, ["ops", "dev", AUTHENTICATED]);
        assert_eq!((bob.uid.as_str(), by.unwrap().name.as_str()), ("7", "root"));
        assert_eq!(bob.extra["scopes/a"], ["view"]);
        const WITHOUT: [&[&str]; 5] = [
            &[NEEDED[1], NEEDED[2], NEEDED[3], NEEDED[4]],
            &[NEEDED[0], NEEDED[2], NEEDED[3], NEEDED[4]],
            &[NEEDED[0], NEEDED[1], NEEDED[3], NEEDED[4]],
            &[NEEDED[0], NEEDED[1], NEEDED[2], NEEDED[4]],
            &[NEEDED[0], NEEDED[1], NEEDED[2], NEEDED[3]],
        ];
        for allowed in WITHOUT {
            assert_eq!(ask(allowed).unwrap_err().code(), 403, "{allowed:?}");
        }
    }

    #[test]
    fn groups_follow_from_whom_is_meant() {
        let be = |pairs: &[(&'static str, &'static str)], allowed| {
            impersonated(&headers(pairs), User::new("root", ["x"]), &Only(allowed))
                .map(|(user, _)| user.groups)
        };
        assert_eq!(
            be(&[(USER, "system:serviceaccount:a:b")], &["/serviceaccounts//a/b"]).unwrap(),
            [
                "system:serviceaccounts",
                "system:serviceaccounts:a",
                AUTHENTICATED
            ]
        );
        assert_eq!(
            be(&[(USER, ANONYMOUS)], &["/users///system:anonymous"]).unwrap(),
            [UNAUTHENTICATED]
        );
        assert_eq!(be(&[(GROUP, "g")], &[]).unwrap_err().code(), 500);
        assert_eq!(be(&[], &[]).unwrap(), ["x"]);
    }
}
