//! The results of expressions, library by library, and the errors of invalid ones.

use std::sync::Arc;

use super::*;

fn run(text: &str) -> String {
    let environment = Environment::default().with_patches().with("object", Type::Dyn);
    let program = match compile(text, &environment) {
        Ok(compiled) => compiled.program,
        Err(why) => return why.to_string(),
    };
    let mut scope = Scope::default();
    scope.set(
        "object",
        of_json(&serde_json::json!({"n": 3, "list": [3, 1, 2], "s": "a1b22"})),
    );
    match program.run(&scope) {
        Ok(value) => to_json(&value).map_or_else(|| "opaque".into(), |v| v.to_string()),
        Err(why) => why.to_string(),
    }
}

#[test]
fn functions_of_kubernetes_libraries_have_kubernetes_results() {
    for (text, want) in [
        ("object.list.isSorted()", "false"),
        ("{'a': ['b']}[?'a'][0].orValue('')", r#""b""#),
        ("{'a': ['b']}[?'x'][0].orValue('')", r#""""#),
        ("{'a': {'b': 'c'}}.?a.b.orValue('')", r#""c""#),
        ("{'a': {'b': 'c'}}.?x.b.orValue('')", r#""""#),
        ("[1, 2].isSorted() && object.list.sum() == 6", "true"),
        ("object.list.min()", "1"),
        ("[].max()", "max called on empty list"),
        ("['a', 'b', 'a'].indexOf('a')", "0"),
        ("['a', 'b', 'a'].lastIndexOf('a')", "2"),
        ("[1.5, 2.5].sum()", "4.0"),
        ("object.s.find('[0-9]+')", r#""1""#),
        ("object.s.findAll('[0-9]+')", r#"["1","22"]"#),
        ("object.s.findAll('[0-9]+', 1)", r#"["1"]"#),
        ("quantity('1Gi').isGreaterThan(quantity('1G'))", "true"),
        (
            "quantity('200M').add(quantity('50M')).compareTo(quantity('250M'))",
            "0",
        ),
        ("quantity('50k').sub(20000) == quantity('30k')", "true"),
        ("quantity('1500m').isInteger()", "false"),
        ("quantity('1500m').asApproximateFloat()", "1.5"),
        ("quantity('50k').asInteger()", "50000"),
        ("quantity('-1').sign()", "-1"),
        ("isQuantity('1.3Gi') && !isQuantity('x')", "true"),
        ("isIP('::1') && !isIP('1.2.3') && !isIP('::ffff:1.2.3.4')", "true"),
        (
            "ip('fe80::1').isLinkLocalUnicast() && ip('127.0.0.1').isLoopback()",
            "true",
        ),
        (
            "ip('10.0.0.1').family() == 4 && ip('10.0.0.1').isGlobalUnicast()",
            "true",
        ),
        ("ip.isCanonical('2001:DB8::1')", "false"),
        ("string(cidr('10.1.2.3/8').masked())", r#""10.0.0.0/8""#),
        (
            "cidr('10.0.0.0/8').containsIP('10.9.9.9') && !cidr('10.0.0.0/8').containsIP(ip('::1'))",
            "true",
        ),
        (
            "cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16') && !cidr('10.1.0.0/16').containsCIDR(cidr('10.0.0.0/8'))",
            "true",
        ),
        ("cidr('10.0.0.0/0').prefixLength()", "0"),
        ("isCIDR('10.0.0.0/33')", "false"),
        ("url('https://u@a.b:80/p/q?x=1&x=2').getHost()", r#""a.b:80""#),
        ("url('https://[::1]:80/').getHostname()", r#""::1""#),
        ("url('/p q?x=%41').getQuery()", r#"{"x":["A"]}"#),
        ("isURL('a/b')", "false"),
        ("semver('1.2.3').isLessThan(semver('1.10.0'))", "true"),
        ("semver('1.0.0-rc.1').compareTo(semver('1.0.0'))", "-1"),
        ("isSemver('v1.0') || !isSemver('v1.0', true)", "false"),
        ("format.dns1123Label().validate('a-b').hasValue()", "false"),
        (
            "format.named('dns1123Label').value().validate('A').value().size() > 0",
            "true",
        ),
        (
            "sets.contains([1, 2], [2]) && sets.equivalent([1, 1, 2], [2, 1]) && !sets.intersects([1], [2])",
            "true",
        ),
        ("jsonpatch.escapeKey('a/b~c')", r#""a~1b~0c""#),
        (
            "Object{spec: Object.spec{replicas: object.n}}",
            r#"{"spec":{"replicas":3}}"#,
        ),
        (
            "[JSONPatch{op: 'add', path: '/a', value: 1}]",
            r#"[{"op":"add","path":"/a","value":1}]"#,
        ),
    ] {
        assert_eq!(run(text), want, "{text}");
    }
}

#[test]
fn a_syntax_error_has_its_position() {
    assert_eq!(
        run("object.n == other"),
        "ERROR: <input>:1:13: undeclared reference to 'other' (in container '')\n | object.n == other\n | ............^"
    );
    assert!(run("object.n ==").starts_with("ERROR: <input>:1:"));
    for text in [
        "".to_string(),
        "(".repeat(10_000),
        "a?".repeat(4_000),
        "x".repeat(limits::EXPRESSION_MAX_BYTES + 1),
    ] {
        assert!(Program::read(&text).is_err());
    }
}

struct Everything;

impl Authorizer for Everything {
    fn decide(&self, attributes: &AttributesRecord) -> Decision {
        Decision {
            allowed: attributes.verb == "get",
            reason: format!("{attributes:?}"),
        }
    }
}

#[test]
fn checks_of_the_authorizer_are_built_call_by_call() {
    let ask = |text: &str| {
        let program = Program::read(text).unwrap();
        let mut scope = Scope::default();
        scope.set("authorizer", AuthorizerValue::variable(Arc::new(Everything)));
        program.run(&scope).map(|v| to_json(&v).unwrap_or_default())
    };
    let question = "authorizer.serviceAccount('n', 's').group('apps').resource('deployments').subresource('scale')\
        .namespace('x').name('y')";
    assert_eq!(
        ask(&format!("{question}.check('get').allowed()")),
        Ok(true.into())
    );
    let reason = ask(&format!("{question}.check('put').reason()")).unwrap();
    let attributes = AttributesRecord {
        service_account: Some(("n".into(), "s".into())),
        verb: "put".into(),
        group: "apps".into(),
        resource: "deployments".into(),
        subresource: "scale".into(),
        namespace: "x".into(),
        name: "y".into(),
        ..AttributesRecord::default()
    };
    assert_eq!(reason, format!("{attributes:?}"));
    assert_eq!(
        ask("authorizer.path('/healthz').check('get').errored()"),
        Ok(false.into())
    );
}

#[test]
fn a_variable_that_fails_fails_where_it_is_used() {
    let mut variables = Variables::default();
    variables.put("good", Ok(Cel::Int(1)));
    variables.put("bad", Err(EvaluationError::Failed("division by zero".into())));
    for (text, want) in [
        ("variables.good == 1 || variables.bad", Ok(true.into())),
        (
            "variables.bad == 1",
            Err(EvaluationError::Failed(
                "composited variable \"bad\" fails to evaluate: division by zero".to_string(),
            )),
        ),
    ] {
        let program = Program::read(text).unwrap();
        let mut scope = Scope::default();
        scope.set_variables(variables.clone());
        assert_eq!(program.run(&scope).map(|v| to_json(&v).unwrap_or_default()), want);
    }
}

#[test]
fn a_text_of_brackets_is_rejected_and_overflows_no_stack() {
    for text in [
        "q[[[[[[q[[[[[[[[".to_string(),
        "[".repeat(48),
        "q[".repeat(48),
        "{q(".repeat(24),
        "(".repeat(48),
    ] {
        assert!(Program::read(&text).is_err(), "{text}");
    }
}
