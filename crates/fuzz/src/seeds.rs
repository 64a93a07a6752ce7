//! Inputs to start from: objects that set many fields of their kinds, and patches of the three types.

use knarr_api::{Kind, registry};
use serde_json::Value;

/// The built-in kind of the document's apiVersion and kind.
pub fn kind_of(json: &str) -> Option<&'static Kind> {
    let value: Value = serde_json::from_str(json).ok()?;
    registry::by_kind(value.get("apiVersion")?.as_str()?, value.get("kind")?.as_str()?)
}

/// Objects of many kinds.
pub const OBJECTS: &[&str] = &[
    r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"d","labels":{"a":"b"},"annotations":{"x":"y"},"finalizers":["e.com/f"],"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n","uid":"u"}]},"spec":{"priorityClassName":"p","nodeSelector":{"d":"ssd"},"tolerations":[{"key":"k","operator":"Exists","effect":"NoExecute","tolerationSeconds":5}],"topologySpreadConstraints":[{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"DoNotSchedule","minDomains":2,"labelSelector":{"matchExpressions":[{"key":"a","operator":"In","values":["b"]}]}}],"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"g","operator":"Gt","values":["5"]}]}]}},"podAntiAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":5,"podAffinityTerm":{"topologyKey":"h","labelSelector":{"matchLabels":{"a":"b"}}}}]}},"initContainers":[{"name":"i","image":"i:1","restartPolicy":"Always"}],"containers":[{"name":"c","image":"img","command":["x"],"ports":[{"containerPort":80,"name":"http"}],"env":[{"name":"E","value":"$(F)"},{"name":"F","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}}],"resources":{"requests":{"cpu":"100m","memory":"1.5Gi"},"limits":{"cpu":"1"}},"livenessProbe":{"httpGet":{"path":"/","port":"http"},"periodSeconds":3},"volumeMounts":[{"name":"v","mountPath":"/v","subPath":"s"}],"securityContext":{"capabilities":{"add":["NET_ADMIN"]},"runAsUser":0}}],"volumes":[{"name":"v","emptyDir":{"sizeLimit":"1Gi"}},{"name":"w","projected":{"sources":[{"secret":{"name":"s","items":[{"key":"k","path":"p"}]}}]}}],"schedulingGates":[{"name":"e.com/g"}]},"status":{"phase":"Running","podIP":"10.0.0.1","conditions":[{"type":"Ready","status":"True","lastTransitionTime":"2024-01-01T00:00:00Z"}],"containerStatuses":[{"name":"c","ready":true,"restartCount":3,"image":"i","imageID":"x","state":{"running":{"startedAt":"2024-01-01T00:00:00Z"}}}]}}"#,
    r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a","namespace":"d"},"spec":{"replicas":3,"selector":{"matchLabels":{"a":"b"}},"strategy":{"type":"RollingUpdate","rollingUpdate":{"maxSurge":"25%","maxUnavailable":1}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}"#,
    r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"d"},"data":{"k":"v"},"binaryData":{"b":"AAE="},"immutable":false}"#,
    r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a","namespace":"d"},"type":"kubernetes.io/dockerconfigjson","data":{".dockerconfigjson":"e30="},"stringData":{"k":"v"}}"#,
    r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"a","namespace":"d"},"spec":{"type":"LoadBalancer","clusterIP":"10.0.0.5","ipFamilyPolicy":"PreferDualStack","ports":[{"name":"h","port":80,"targetPort":"http","nodePort":30000},{"name":"u","port":80,"protocol":"UDP"}],"selector":{"a":"b"},"externalIPs":["1.2.3.4"],"sessionAffinity":"ClientIP"}}"#,
    r#"{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"a","namespace":"d"},"spec":{"completions":5,"parallelism":2,"completionMode":"Indexed","backoffLimitPerIndex":1,"podFailurePolicy":{"rules":[{"action":"FailIndex","onExitCodes":{"operator":"In","values":[1]}}]},"successPolicy":{"rules":[{"succeededIndexes":"0-2,4"}]},"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}"#,
    r#"{"apiVersion":"batch/v1","kind":"CronJob","metadata":{"name":"a","namespace":"d"},"spec":{"schedule":"*/5 * * * *","timeZone":"UTC","concurrencyPolicy":"Forbid","jobTemplate":{"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}}}"#,
    r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"n","labels":{"a":"b"}},"spec":{"taints":[{"key":"k","effect":"NoSchedule"}],"podCIDRs":["10.1.0.0/24"],"unschedulable":true},"status":{"capacity":{"cpu":"4","memory":"8Gi"},"allocatable":{"cpu":"3500m"},"addresses":[{"type":"InternalIP","address":"10.0.0.1"}],"images":[{"names":["a"],"sizeBytes":5}]}}"#,
    r#"{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"a","namespace":"d"},"spec":{"podSelector":{},"ingress":[{"from":[{"ipBlock":{"cidr":"10.0.0.0/8","except":["10.1.0.0/16"]}}],"ports":[{"port":80,"endPort":90}]}]}}"#,
    r#"{"apiVersion":"networking.k8s.io/v1","kind":"Ingress","metadata":{"name":"a","namespace":"d"},"spec":{"rules":[{"host":"*.a.b","http":{"paths":[{"path":"/","pathType":"Prefix","backend":{"service":{"name":"s","port":{"number":80}}}}]}}]}}"#,
    r#"{"apiVersion":"autoscaling/v2","kind":"HorizontalPodAutoscaler","metadata":{"name":"a","namespace":"d"},"spec":{"scaleTargetRef":{"kind":"Deployment","name":"a","apiVersion":"apps/v1"},"maxReplicas":5,"metrics":[{"type":"Resource","resource":{"name":"cpu","target":{"type":"Utilization","averageUtilization":50}}}],"behavior":{"scaleUp":{"policies":[{"type":"Pods","value":4,"periodSeconds":15}]}}}}"#,
    r#"{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"a"},"aggregationRule":{"clusterRoleSelectors":[{"matchLabels":{"a":"b"}}]},"rules":[{"apiGroups":["*"],"resources":["pods/log"],"verbs":["get"],"resourceNames":["x"]},{"nonResourceURLs":["/x*"],"verbs":["get"]}]}"#,
    r#"{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy","metadata":{"name":"a"},"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["pods"]}]},"matchConditions":[{"name":"m","expression":"true"}],"variables":[{"name":"v","expression":"object.spec"}],"validations":[{"expression":"variables.v.containers.size() < 5","messageExpression":"'a'"}]}}"#,
    r#"{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"name":"a","namespace":"d"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}},"storageClassName":"s","dataSourceRef":{"kind":"PersistentVolumeClaim","name":"b"}}}"#,
    r#"{"apiVersion":"v1","kind":"PersistentVolume","metadata":{"name":"a"},"spec":{"capacity":{"storage":"1Gi"},"accessModes":["ReadWriteOnce"],"hostPath":{"path":"/x"},"nodeAffinity":{"required":{"nodeSelectorTerms":[{"matchFields":[{"key":"metadata.name","operator":"In","values":["n"]}]}]}}}}"#,
    r#"{"apiVersion":"policy/v1","kind":"PodDisruptionBudget","metadata":{"name":"a","namespace":"d"},"spec":{"minAvailable":"50%","selector":{"matchLabels":{"a":"b"}}}}"#,
    r#"{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","metadata":{"name":"a","namespace":"d"},"spec":{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"c","selectors":[{"cel":{"expression":"device.driver == 'x'"}}],"count":2}}]}}}"#,
];

/// JSON patches.
pub const JSON_PATCHES: &[&str] = &[
    r#"[{"op":"test","path":"/metadata/name","value":"a"},{"op":"add","path":"/metadata/labels","value":{"x":"y"}},{"op":"copy","from":"/metadata","path":"/spec/x"},{"op":"move","from":"/spec","path":"/status"},{"op":"remove","path":"/kind"},{"op":"replace","path":"/metadata/name","value":5}]"#,
    r#"[{"op":"add","path":"/spec/containers/-","value":{"name":"z","image":"z"}},{"op":"remove","path":"/spec/containers/0"},{"op":"copy","from":"","path":"/a~1b~0"},{"op":"add","path":"/spec/containers/-1","value":null}]"#,
];

/// Merge patches, which are also what is applied.
pub const MERGE_PATCHES: &[&str] = &[
    r#"{"metadata":{"name":"a"}}"#,
    r#"{"metadata":{"labels":{"a":null,"c":"d"}},"spec":{"replicas":null,"containers":null}}"#,
    r#"{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"new"},{"name":"n","image":"x"}]}},"containers":[{"name":"c","image":"j","env":[{"name":"E","value":"2"}]}]}}"#,
    r#"{"data":{"k":"w"},"metadata":{"finalizers":["x.io/y"],"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"m","uid":"w"}]},"spec":{"ports":[{"port":81,"protocol":"TCP"}]}}"#,
];

/// Strategic merge patches.
pub const STRATEGIC_PATCHES: &[&str] = &[
    r#"{"metadata":{"labels":{"a":null},"$deleteFromPrimitiveList/finalizers":["e.com/f"]},"spec":{"$setElementOrder/containers":[{"name":"n"},{"name":"c"}],"containers":[{"name":"n","image":"x"},{"name":"c","$patch":"delete"}],"volumes":[{"$retainKeys":["name","emptyDir"],"name":"v","emptyDir":{}}]}}"#,
    r#"{"spec":{"$patch":"replace","containers":[{"$patch":"replace"},{"name":"q"}],"strategy":{"$retainKeys":["type"],"type":"Recreate"},"ports":[{"port":80,"$patch":"delete"}],"tolerations":null}}"#,
];
