//! Impersonation: `Impersonate-User`, `-Group`, `-Uid` and `-Extra-<key>`, each authorized separately.
//!
//! A proxy impersonates its users by these headers, so none of them is ignored: a malformed, unknown, duplicate or empty one
//! is 400, and the request is never served as the proxy itself. kube-apiserver ignores unknown ones, takes the first of
//! several users, and keeps an extra key as it was sent if its percent-encoding is invalid.

use std::collections::BTreeMap;

use http::HeaderMap;
use http::header::HeaderName;
use knarr_apimachinery::Error;

use crate::authz::{Attributes, Authorizer, forbidden};
use crate::http::header;
use crate::user::{ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED, User};

const PREFIX: &str = "impersonate-";
/// The part after [`PREFIX`] that precedes the key of an extra field.
const EXTRA: &str = "extra-";

/// The impersonation that a request's headers ask for.
#[derive(Debug, Default, PartialEq, Eq)]
struct ImpersonationRequest {
    user: String,
    groups: Vec<String>,
    uid: String,
    extra: BTreeMap<String, Vec<String>>,
}

impl ImpersonationRequest {
    fn read(headers: &HeaderMap) -> Result<Self, Error> {
        let mut requested = ImpersonationRequest::default();
        for (name, value) in headers {
            let Some(what) = name.as_str().strip_prefix(PREFIX) else {
                continue;
            };
            let value = header::text(name, value)?;
            if let Some(key) = what.strip_prefix(EXTRA) {
                let values = requested.extra.entry(extra_key(name, key)?).or_default();
                values.push(value.to_string());
                continue;
            }
            if value.is_empty() {
                return Err(Error::bad_request(format!("header {name} is empty")));
            }
            let once = match what {
                "user" => &mut requested.user,
                "uid" => &mut requested.uid,
                "group" => {
                    requested.groups.push(value.to_string());
                    continue;
                }
                _ => return Err(Error::bad_request(format!("header {name} is not supported"))),
            };
            if !once.is_empty() {
                return Err(Error::bad_request(format!(
                    "header {name} is given more than once"
                )));
            }
            *once = value.to_string();
        }
        Ok(requested)
    }

    /// `system:serviceaccount:<namespace>:<name>`.
    fn service_account(&self) -> Option<(&str, &str)> {
        let (namespace, name) = self
            .user
            .strip_prefix("system:serviceaccount:")?
            .split_once(':')?;
        let well_formed = !namespace.is_empty() && !name.is_empty() && !name.contains(':');
        well_formed.then_some((namespace, name))
    }

    /// The permissions that the impersonator needs, each with verb `impersonate`.
    fn required_permissions(&self) -> Vec<Attributes<'_>> {
        let permission = |group, resource, subresource, namespace, name| Attributes {
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
            Some((namespace, name)) => permission("", "serviceaccounts", "", namespace, name),
            None => permission("", "users", "", "", self.user.as_str()),
        }];
        all.extend(self.groups.iter().map(|g| permission("", "groups", "", "", g)));
        for (key, values) in &self.extra {
            let permissions = values
                .iter()
                .map(|v| permission(authentication, "userextras", key, "", v));
            all.extend(permissions);
        }
        if !self.uid.is_empty() {
            all.push(permission(authentication, "uids", "", "", &self.uid));
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

/// The key of an extra value, whose special characters are percent-encoded in the header's name.
fn extra_key(name: &HeaderName, key: &str) -> Result<String, Error> {
    let invalid = || Error::bad_request(format!("header {name} does not name an extra key"));
    // An encoded `%` is decoded once, and is not an escape afterwards.
    let escapes = key
        .as_bytes()
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'%');
    for (at, _) in escapes {
        let digits = key.as_bytes().get(at + 1..at + 3).ok_or_else(invalid)?;
        if !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(invalid());
        }
    }
    let key = percent_encoding::percent_decode_str(key)
        .decode_utf8()
        .map_err(|_| invalid())?;
    match key.is_empty() {
        true => Err(invalid()),
        false => Ok(key.into_owned()),
    }
}

/// The user of the request: `user`, or the user in the impersonation headers if `user` may impersonate it; then with `user`.
pub(super) fn impersonated(
    headers: &HeaderMap,
    user: User,
    authorizer: &dyn Authorizer,
) -> Result<(User, Option<User>), Error> {
    let requested = ImpersonationRequest::read(headers)?;
    if requested == ImpersonationRequest::default() {
        return Ok((user, None));
    }
    if requested.user.is_empty() {
        return Err(Error::internal(
            "requested impersonation of groups, a uid or extra fields without impersonating a user",
        ));
    }
    if let Some(denied) = requested
        .required_permissions()
        .iter()
        .find(|request| !authorizer.allows(&user, request))
    {
        return Err(forbidden(&user, denied));
    }
    Ok((requested.user(), Some(user)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: &str = "impersonate-user";
    const GROUP: &str = "impersonate-group";
    const UID: &str = "impersonate-uid";

    /// Allows what its list names as `group/resource/subresource/namespace/name`.
    struct AllowList(&'static [&'static str]);

    impl Authorizer for AllowList {
        fn allows(&self, _: &User, r: &Attributes<'_>) -> bool {
            let key = [r.group, r.resource, r.subresource, r.namespace, r.name].join("/");
            r.verb == "impersonate" && self.0.contains(&key.as_str())
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
    fn each_impersonated_attribute_must_be_allowed() {
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
        let impersonate_all = |allowed| impersonated(&all, User::new("root", ["x"]), &AllowList(allowed));
        let (bob, by) = impersonate_all(&NEEDED).unwrap();
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
            assert_eq!(impersonate_all(allowed).unwrap_err().code(), 403, "{allowed:?}");
        }
    }

    #[test]
    fn a1_every_impersonation_header_is_read_or_rejected() {
        /// Allows everything.
        struct All;
        impl Authorizer for All {
            fn allows(&self, _: &User, _: &Attributes<'_>) -> bool {
                true
            }
        }
        let impersonate = |pairs: &[(&'static str, &[u8])]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(*name, http::HeaderValue::from_bytes(value).unwrap());
            }
            impersonated(&headers, User::new("proxy", ["x"]), &All)
                .map(|(user, by)| {
                    assert!(by.is_some(), "{pairs:?}");
                    user
                })
                .map_err(|e| e.code())
        };
        const BOB: (&str, &[u8]) = (USER, b"bob");
        assert_eq!(impersonate(&[(USER, "jörg".as_bytes())]).unwrap().name, "jörg");
        let joerg = impersonate(&[
            BOB,
            (GROUP, "größer".as_bytes()),
            ("impersonate-extra-s%c3%b6", "ü".as_bytes()),
        ]);
        let joerg = joerg.unwrap();
        assert_eq!(joerg.groups[0], "größer");
        assert_eq!(joerg.extra["sö"], ["ü"]);
        let empty = impersonate(&[BOB, ("impersonate-extra-scopes", b"")]).unwrap();
        assert_eq!(empty.extra["scopes"], [""]);
        let escaped = impersonate(&[BOB, ("impersonate-extra-a%252f", b"x")]).unwrap();
        assert_eq!(escaped.extra["a%2f"], ["x"]);
        for rejected in [
            &[(USER, &b"j\xf6rg"[..])][..],
            &[(USER, b"")],
            &[BOB, (USER, b"eve")],
            &[BOB, BOB],
            &[BOB, (GROUP, b"\xff")],
            &[BOB, (GROUP, b"")],
            &[BOB, (UID, b"\xff")],
            &[BOB, (UID, b"")],
            &[BOB, (UID, b"1"), (UID, b"2")],
            &[BOB, ("impersonate-extra-scopes", b"\xff")],
            &[BOB, ("impersonate-extra-", b"x")],
            &[BOB, ("impersonate-extra-a%2", b"x")],
            &[BOB, ("impersonate-extra-a%zz", b"x")],
            &[BOB, ("impersonate-extra-a%ff", b"x")],
            &[BOB, ("impersonate-extra", b"x")],
            &[BOB, ("impersonate-foo", b"x")],
            &[("impersonate-foo", b"x")],
            &[("impersonate-", b"x")],
            &[("impersonate-users", b"bob")],
        ] {
            assert_eq!(impersonate(rejected), Err(400), "{rejected:?}");
        }
    }

    #[test]
    fn default_groups_follow_from_the_impersonated_user() {
        let impersonate = |pairs: &[(&'static str, &'static str)], allowed| {
            impersonated(&headers(pairs), User::new("root", ["x"]), &AllowList(allowed))
                .map(|(user, _)| user.groups)
        };
        assert_eq!(
            impersonate(&[(USER, "system:serviceaccount:a:b")], &["/serviceaccounts//a/b"]).unwrap(),
            [
                "system:serviceaccounts",
                "system:serviceaccounts:a",
                AUTHENTICATED
            ]
        );
        assert_eq!(
            impersonate(&[(USER, ANONYMOUS)], &["/users///system:anonymous"]).unwrap(),
            [UNAUTHENTICATED]
        );
        assert_eq!(impersonate(&[(GROUP, "g")], &[]).unwrap_err().code(), 500);
        assert_eq!(impersonate(&[], &[]).unwrap(), ["x"]);
    }
}
