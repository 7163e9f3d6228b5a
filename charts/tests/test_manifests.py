"""What the chart makes of its values files: valid, restricted, and fit to be upgraded."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tidegate_gateway import settings
from tidegate_table import document

CHART = Path(__file__).parents[1] / "tidegate"
WITHOUT_OPERATOR = Path(__file__).parent / "without-operator.yaml"
VALUES_FILES = sorted(path.name for path in CHART.glob("values*.yaml"))

Manifest = dict[str, Any]
Render = Callable[..., list[Manifest]]


# Everything that can be asked for at once, beside what the values files have.
EVERYTHING = """
fullnameOverride: serving
imagePullSecrets: [{name: registry}]
prometheusAnnotations: true
gateway: &pods
  replicas: 3
  podLabels: {team: vision}
  podAnnotations: {example.com/note: "yes"}
  nodeSelector: {pool: main}
  tolerations: [{key: pool, operator: Equal, value: main, effect: NoSchedule}]
  priorityClassName: high
  extraEnv: [{name: A, value: b}, {name: C, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
  extraVolumes: [{name: more, emptyDir: {}}]
  extraVolumeMounts: [{name: more, mountPath: /more, readOnly: true}]
  podDisruptionBudget: {maxUnavailable: 50%}
  affinity:
    podAntiAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        - topologyKey: kubernetes.io/hostname
          labelSelector: {matchLabels: {app.kubernetes.io/component: gateway}}
  serviceAccount: {create: true, name: own, annotations: {example.com/role: reader}}
  image: {digest: "sha256:0000000000000000000000000000000000000000000000000000000000000000"}
routing:
  revision: 7
  models:
    image_classifier: {stable: "1", weights: {1: 95.5, 2: 4.5}}
    resnet50_cpp: {stable: "3"}
  aliases: {classifier: image_classifier}
engine:
  <<: *pods
  serviceAccount: {create: false}
  models: [image_classifier, resnet50_cpp]
  gpu: {count: 2, resource: nvidia.com/mig-1g.5gb}
  runtimeClassName: nvidia
  extraArgs: [--log-verbose=1]
  updateStrategy: {type: RollingUpdate, rollingUpdate: {partition: 1}}
  repository: {volume: {nfs: {server: files.example.com, path: /models, readOnly: true}}}
"""


@pytest.fixture(scope="session")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("values") / "everything.yaml"
    path.write_text(EVERYTHING)
    return path


@pytest.fixture(params=[*VALUES_FILES, "everything"])
def manifests(
    request: pytest.FixtureRequest, render: Render, everything: Path
) -> list[dict[str, Any]]:
    """The objects of one values file, without the operator."""
    return render(*values_words(request.param, everything))


def values_words(name: str, everything: Path) -> tuple[str | Path, ...]:
    if name == "values.yaml":
        return ()  # Helm reads it anyway
    return ("--values", everything if name == "everything" else CHART / name)


@pytest.mark.parametrize("values", VALUES_FILES)
def test_lint_has_nothing_to_say(run_helm: Any, values: str) -> None:
    done = run_helm("lint", "--strict", CHART, "--values", CHART / values)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.needs("go")
def test_kubernetes_knows_every_field(
    manifests: list[Manifest], strictly_valid: Callable[[list[Manifest]], None]
) -> None:
    strictly_valid(manifests)


@pytest.mark.needs("go")
def test_an_unknown_field_would_be_seen(
    render: Render, strictly_valid: Callable[[list[Manifest]], None]
) -> None:
    manifests = render()
    one(manifests, "StatefulSet", "tidegate-engine")["spec"]["podManagmentPolicy"] = "Parallel"
    with pytest.raises(AssertionError, match="podManagmentPolicy"):
        strictly_valid(manifests)


def test_nothing_is_outside_of_the_namespace(manifests: list[Manifest]) -> None:
    assert {manifest["kind"] for manifest in manifests} == {
        "ConfigMap",
        "Deployment",
        "Pod",
        "PodDisruptionBudget",
        "Role",
        "RoleBinding",
        "Service",
        "ServiceAccount",
        "StatefulSet",
    }
    assert {manifest["metadata"].get("namespace") for manifest in manifests} <= {None, "tidegate"}


def test_every_container_is_restricted(manifests: list[Manifest]) -> None:
    specs = [*pod_specs(manifests)]
    assert len(specs) == 3
    for spec in specs:
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        assert spec["securityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["requests"].keys() >= {"cpu", "memory"}
            assert "memory" in container["resources"]["limits"]


def test_what_selects_selects_its_own_pods_and_no_others(manifests: list[Manifest]) -> None:
    pods = [
        (manifest["metadata"]["name"], manifest["spec"]["template"]["metadata"]["labels"])
        for manifest in manifests
        if manifest["kind"] in ("Deployment", "StatefulSet")
    ] + [(m["metadata"]["name"], m["metadata"]["labels"]) for m in manifests if m["kind"] == "Pod"]
    selectors = [
        (manifest["metadata"]["name"], manifest["spec"]["selector"])
        for manifest in manifests
        if manifest["kind"] in ("Deployment", "StatefulSet", "PodDisruptionBudget", "Service")
    ]
    assert len(selectors) == 6
    for name, selector in selectors:
        labels = selector.get("matchLabels", selector)
        assert [pod for pod, has in pods if labels.items() <= has.items()] == [name]


@pytest.mark.parametrize("operated", [False, True])
def test_names_and_labels_fit_whatever_the_release_is_called(
    render: Render, operated: bool
) -> None:
    release = "a-release-whose-name-is-as-long-as-helm-lets-it-be-53"
    manifests = render(release=release, operated=operated)
    for manifest in manifests:
        assert len(manifest["metadata"]["name"]) <= 63
        for value in manifest["metadata"]["labels"].values():
            assert len(value) <= 63
    stateful_set = one(manifests, "StatefulSet")
    # Its pods have a label of its name, a hyphen, and a hash of ten characters.
    assert len(stateful_set["metadata"]["name"]) <= 63 - 11
    assert stateful_set["spec"]["serviceName"] in {
        manifest["metadata"]["name"] for manifest in manifests if manifest["kind"] == "Service"
    }


# --- Upgrades -----------------------------------------------------------------------------------


def selector(component: str) -> dict[str, dict[str, str]]:
    return {
        "matchLabels": {
            "app.kubernetes.io/name": "tidegate",
            "app.kubernetes.io/instance": "tidegate",
            "app.kubernetes.io/component": component,
        }
    }


@pytest.mark.parametrize("operated", [False, True])
@pytest.mark.parametrize("values", VALUES_FILES)
def test_what_cannot_be_changed_in_a_cluster_is_as_in_chart_0_1_0(
    render: Render, values: str, operated: bool, tmp_path: Path
) -> None:
    chart = tmp_path / "tidegate"
    shutil.copytree(CHART, chart)
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    (chart / "Chart.yaml").write_text(yaml.safe_dump(about | {"version": "7.8.9-rc.1+built"}))

    words = () if values == "values.yaml" else ("--values", chart / values)
    manifests = render(*words, chart=chart, operated=operated)

    deployment = one(manifests, "Deployment", "tidegate-gateway")["spec"]
    assert deployment["selector"] == selector("gateway")
    stateful_set = one(manifests, "StatefulSet", "tidegate-engine")["spec"]
    # All that Kubernetes lets nobody change in a StatefulSet; there are no claim templates.
    may_change = {"replicas", "template", "updateStrategy"}
    assert {k: v for k, v in stateful_set.items() if k not in may_change} == {
        "podManagementPolicy": "Parallel",
        "selector": selector("engine"),
        "serviceName": "tidegate-engine",
    }
    assert one(manifests, "Service", "tidegate-engine")["spec"]["clusterIP"] == "None"


@pytest.mark.parametrize(("operated", "workloads"), [(False, 2), (True, 3)])
def test_a_new_version_of_the_chart_restarts_no_pod(
    render: Render, operated: bool, workloads: int, tmp_path: Path
) -> None:
    chart = tmp_path / "tidegate"
    shutil.copytree(CHART, chart)
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    (chart / "Chart.yaml").write_text(yaml.safe_dump(about | {"version": "7.8.9"}))

    def templates(manifests: list[Manifest]) -> list[Manifest]:
        return [m["spec"]["template"] for m in manifests if "template" in m.get("spec", {})]

    before = templates(render(operated=operated))
    after = templates(render(chart=chart, operated=operated))
    assert len(before) == workloads
    assert after == before


# --- What the values do -------------------------------------------------------------------------


def test_settings_become_variables_as_they_were_written(render: Render) -> None:
    environment = environment_of_gateway(
        render(
            "--set-json",
            'gateway.settings={"images":{"max_pixels":1000000000},"deadline":{"predict_s":0.25},'
            '"default_model":"x","log":{"level":"debug"}}',
        )
    )
    assert environment == {
        "TIDEGATE_DEFAULT_MODEL": "x",
        "TIDEGATE_DEADLINE__PREDICT_S": "0.25",
        "TIDEGATE_DISCOVERY__SERVICE": "tidegate-engine",
        "TIDEGATE_DISCOVERY__SOURCE": "kubernetes",
        "TIDEGATE_DRAIN__DELAY_S": "5",
        "TIDEGATE_DRAIN__GRACE_S": "30",
        "TIDEGATE_ENGINE__KEEPALIVE_S": "10",
        "TIDEGATE_IMAGES__MAX_PIXELS": "1000000000",
        "TIDEGATE_LOG__LEVEL": "debug",
    }


def test_the_gateway_takes_these_settings(
    manifests: list[Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = environment_of_gateway(manifests)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    taken = settings.load([])
    assert (taken.discovery.source, taken.discovery.service) == (
        *("kubernetes", one(manifests, "StatefulSet")["spec"]["serviceName"]),
    )
    assert taken.default_model == "image_classifier"


def test_pods_get_the_time_to_leave(render: Render) -> None:
    manifests = render(
        '--set-json=gateway.settings.drain={"delay_s":7.5,"grace_s":60}',
        "--set=engine.drain.delaySeconds=20,engine.drain.graceSeconds=300",
    )
    gateway = one(manifests, "Deployment")["spec"]["template"]["spec"]
    assert gateway["terminationGracePeriodSeconds"] == 78
    engine = one(manifests, "StatefulSet")["spec"]["template"]["spec"]
    assert engine["terminationGracePeriodSeconds"] == 330
    triton = engine["containers"][0]
    assert triton["lifecycle"] == {"preStop": {"sleep": {"seconds": 20}}}
    assert "--exit-timeout-secs=300" in triton["args"]


def test_an_engine_outlives_the_news_of_its_leaving(manifests: list[Manifest]) -> None:
    triton = one(manifests, "StatefulSet")["spec"]["template"]["spec"]["containers"][0]
    assert triton["lifecycle"]["preStop"]["sleep"]["seconds"] >= 5


def test_engines_keep_the_connections_of_gateways(manifests: list[Manifest]) -> None:
    """Gateways keep one to each engine for as long as it is there, and test it each 10 s."""
    triton = one(manifests, "StatefulSet")["spec"]["template"]["spec"]["containers"][0]
    assert [argument for argument in triton["args"] if "grpc" in argument] == [
        "--grpc-http2-min-recv-ping-interval-without-data=5000",
        "--grpc-keepalive-permit-without-calls=1",
    ]
    environment = environment_of_gateway(manifests)
    assert float(environment["TIDEGATE_ENGINE__KEEPALIVE_S"]) > 5


def test_every_model_is_loaded_and_a_failed_one_stops_the_engine(render: Render) -> None:
    manifests = render("--set=engine.models={image_classifier,resnet50_cpp}")
    triton = one(manifests, "StatefulSet")["spec"]["template"]["spec"]["containers"][0]
    assert triton["command"] == ["tritonserver"]
    assert {
        "--model-control-mode=explicit",
        "--load-model=image_classifier",
        "--load-model=resnet50_cpp",
        "--exit-on-error=true",
    } <= {*triton["args"]}
    assert triton["readinessProbe"]["httpGet"]["path"] == "/v2/models/image_classifier/ready"


@pytest.mark.parametrize(
    ("argument", "volume"),
    [
        (
            "existingClaim=models",
            {"persistentVolumeClaim": {"claimName": "models", "readOnly": True}},
        ),
        ("hostPath=/srv/models", {"hostPath": {"path": "/srv/models", "type": "Directory"}}),
        ("volume.image.reference=x/models:1", {"image": {"reference": "x/models:1"}}),
    ],
)
def test_models_from_a_volume(render: Render, argument: str, volume: Manifest) -> None:
    manifests = render(f"--set=engine.repository.{argument}")
    spec = one(manifests, "StatefulSet")["spec"]["template"]["spec"]
    assert {"name": "models", **volume} in spec["volumes"]
    [triton] = spec["containers"]
    assert {"name": "models", "mountPath": "/models", "readOnly": True} in triton["volumeMounts"]
    assert "--model-repository=/models" in triton["args"]


def test_models_from_the_image(render: Render) -> None:
    spec = one(render(), "StatefulSet")["spec"]["template"]["spec"]
    assert {volume["name"] for volume in spec["volumes"]} == {"tmp", "shm"}
    assert "--model-repository=/opt/tidegate/models" in spec["containers"][0]["args"]


def test_gpus_are_asked_for_only_where_there_are_some(render: Render) -> None:
    def engine(*arguments: str | Path) -> Manifest:
        spec: Manifest = one(render(*arguments), "StatefulSet")["spec"]["template"]["spec"]
        return spec

    without = engine()
    assert without["containers"][0]["resources"]["limits"].keys() == {"memory"}
    assert "runtimeClassName" not in without

    with_one = engine("--values", CHART / "values-gpu.yaml")
    assert with_one["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert with_one["runtimeClassName"] == "nvidia"
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in with_one[
        "tolerations"
    ]

    slices = engine("--set=engine.gpu.count=2,engine.gpu.resource=nvidia.com/mig-1g\\.5gb")
    assert slices["containers"][0]["resources"]["limits"]["nvidia.com/mig-1g.5gb"] == 2


def test_labels_of_the_values_cannot_replace_those_of_the_chart(render: Render) -> None:
    manifests = render(
        "--set-json", 'gateway.podLabels={"app.kubernetes.io/component":"mine","team":"vision"}'
    )
    labels = one(manifests, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/component"] == "gateway"
    assert labels["team"] == "vision"


def test_prometheus_annotations_are_there_on_demand(render: Render) -> None:
    def annotations(*arguments: str) -> dict[str, Any]:
        return {
            m["kind"]: m["spec"]["template"]["metadata"].get("annotations")
            for m in render(*arguments)
            if m["kind"] in ("Deployment", "StatefulSet")
        }

    assert annotations() == {"Deployment": None, "StatefulSet": None}
    assert annotations("--set=prometheusAnnotations=true") == {
        kind: {
            "prometheus.io/scrape": "true",
            "prometheus.io/port": port,
            "prometheus.io/path": "/metrics",
        }
        for kind, port in (("Deployment", "8082"), ("StatefulSet", "8002"))
    }


def test_notes_tell_of_model_rollouts_where_there_are_some(run_helm: Any) -> None:
    def notes(*arguments: str | Path) -> str:
        done = run_helm("install", "tidegate", CHART, "--dry-run=client", *arguments)
        assert done.returncode == 0, done.stderr
        return str(done.stdout.partition("NOTES:")[2])

    assert "kubectl --namespace shop get modelrollouts\n" in notes("--namespace=shop")
    assert "modelrollouts" not in notes("--values", WITHOUT_OPERATOR)


def test_notes_name_what_is_there(run_helm: Any) -> None:
    done = run_helm(
        *("install", "blue", CHART, "--namespace=shop", "--dry-run=client"),
        *("--set", "gateway.service.httpPort=80,rollouts.image_classifier=null"),
        "--set=rollouts.resnet50_cpp.version=1",
    )
    assert done.returncode == 0, done.stderr
    manifest, _, notes = done.stdout.partition("NOTES:")
    services = {m["metadata"]["name"] for m in objects(manifest) if m["kind"] == "Service"}
    assert services == {"blue-tidegate-gateway", "blue-tidegate-engine"}
    assert "kubectl --namespace shop port-forward service/blue-tidegate-gateway 8080:80\n" in notes
    assert "curl -i http://127.0.0.1:8080/v2/models/resnet50_cpp/ready\n" in notes
    assert (
        "curl --form file=@photo.jpg 'http://127.0.0.1:8080/predict?model=resnet50_cpp&top=3'\n"
        in notes
    )
    assert "helm test blue --namespace shop --logs" in notes


# --- How the gateways find the engines ----------------------------------------------------------

DNS = "--set=gateway.settings.discovery.source=address"
ELSEWHERE = "--set=engine.enabled=false,gateway.settings.engine.address=triton.example.com:8001"
IN_GPUS = (
    "--set=gateway.settings.discovery.service=triton,gateway.settings.discovery.namespace=gpus"
)
MAY_READ_SLICES = [
    {
        "apiGroups": ["discovery.k8s.io"],
        "resources": ["endpointslices"],
        "verbs": ["get", "list", "watch"],
    }
]
TOKEN_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"


def test_gateways_may_read_endpoint_slices_and_nothing_else(manifests: list[Manifest]) -> None:
    role, binding = one(manifests, "Role"), one(manifests, "RoleBinding")
    assert role["rules"] == MAY_READ_SLICES
    assert binding["roleRef"] == {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "Role",
        "name": role["metadata"]["name"],
    }
    pod = one(manifests, "Deployment")["spec"]["template"]["spec"]
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": pod["serviceAccountName"], "namespace": "tidegate"}
    ]
    assert {role["metadata"]["namespace"], binding["metadata"]["namespace"]} == {"tidegate"}


def test_gateways_alone_have_a_token(manifests: list[Manifest]) -> None:
    with_token = [spec for spec in pod_specs(manifests) if token_sources(spec)]
    assert with_token == [one(manifests, "Deployment")["spec"]["template"]["spec"]]
    [spec] = with_token
    assert token_sources(spec) == [
        {"serviceAccountToken": {"path": "token"}},
        {
            "configMap": {
                "name": "kube-root-ca.crt",
                "items": [{"key": "ca.crt", "path": "ca.crt"}],
            }
        },
        {
            "downwardAPI": {
                "items": [
                    {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}},
                ]
            }
        },
    ]
    assert {"name": "token", "mountPath": TOKEN_FOLDER, "readOnly": True} in spec["containers"][0][
        "volumeMounts"
    ]


@pytest.mark.parametrize(
    ("argument", "address"),
    [(DNS, "tidegate-engine:8001"), (ELSEWHERE, "triton.example.com:8001")],
)
def test_by_address_there_is_neither_role_nor_token(
    render: Render, argument: str, address: str
) -> None:
    manifests = render(argument)
    environment = environment_of_gateway(manifests)
    assert environment["TIDEGATE_ENGINE__ADDRESS"] == address
    assert environment["TIDEGATE_DISCOVERY__SOURCE"] == "address"
    assert {"Role", "RoleBinding"}.isdisjoint(m["kind"] for m in manifests)
    for spec in pod_specs(manifests):
        assert spec["automountServiceAccountToken"] is False
        assert token_sources(spec) == []
        for container in spec["containers"]:
            mounts = {mount["mountPath"] for mount in container.get("volumeMounts", [])}
            assert TOKEN_FOLDER not in mounts


def test_without_engines_nothing_of_them_is_made(render: Render) -> None:
    manifests = render(ELSEWHERE)
    components = {m["metadata"]["labels"]["app.kubernetes.io/component"] for m in manifests}
    assert components == {"gateway", "test"}


@pytest.mark.parametrize("engines", ["false", "true"])
def test_the_service_may_be_another_one_in_another_namespace(render: Render, engines: str) -> None:
    manifests = render(
        *(f"--set=engine.enabled={engines}", IN_GPUS, "--set=gateway.serviceAccount.name=reader")
    )
    environment = environment_of_gateway(manifests)
    assert environment["TIDEGATE_DISCOVERY__SOURCE"] == "kubernetes"
    assert environment["TIDEGATE_DISCOVERY__SERVICE"] == "triton"
    assert environment["TIDEGATE_DISCOVERY__NAMESPACE"] == "gpus"
    assert "TIDEGATE_ENGINE__ADDRESS" not in environment
    role, binding = one(manifests, "Role"), one(manifests, "RoleBinding")
    assert role["rules"] == MAY_READ_SLICES
    assert {role["metadata"]["namespace"], binding["metadata"]["namespace"]} == {"gpus"}
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": "reader", "namespace": "tidegate"}
    ]


def test_roles_of_releases_of_one_name_do_not_meet_in_another_namespace(
    render: Render, strictly_valid: Callable[[list[Manifest]], None]
) -> None:
    def made(*arguments: str) -> list[Manifest]:
        return [m for m in render(*arguments) if m["kind"] in ("Role", "RoleBinding")]

    def names(manifests: list[Manifest]) -> set[str]:
        return {manifest["metadata"]["name"] for manifest in manifests}

    # Helm takes the last of several namespaces.
    blue, green = made(IN_GPUS, "--namespace=blue"), made(IN_GPUS, "--namespace=green")
    assert names(blue) == {"tidegate-gateway.blue"}
    assert names(green) == {"tidegate-gateway.green"}
    assert names(made(IN_GPUS, "--namespace=gpus")) == {"tidegate-gateway"}
    assert one(blue, "RoleBinding")["roleRef"]["name"] == one(blue, "Role")["metadata"]["name"]
    strictly_valid([*blue, *green])


def test_the_zone_is_the_pods_own_unless_it_is_given(render: Render) -> None:
    def zone(*arguments: str) -> list[Manifest]:
        [container] = one(render(*arguments), "Deployment")["spec"]["template"]["spec"][
            "containers"
        ]
        return [v for v in container["env"] if v["name"] == "TIDEGATE_BALANCING__ZONE"]

    field = {"fieldRef": {"fieldPath": "metadata.labels['topology.kubernetes.io/zone']"}}
    own = [{"name": "TIDEGATE_BALANCING__ZONE", "valueFrom": field}]
    assert zone() == own
    assert zone("--set=gateway.settings.balancing.subset=10") == own
    assert zone("--set=gateway.settings.balancing.zone=eu-1a") == [
        {"name": "TIDEGATE_BALANCING__ZONE", "value": "eu-1a"}
    ]


# --- The routing table --------------------------------------------------------------------------

WITH_TABLE = (
    '--set-json=routing.models={"a":{"stable":"1","weights":{"1":66.6,"2":33.4}},'
    '"b":{"stable":"3"}}'
)


def test_the_table_is_as_the_gateway_takes_it(render: Render, everything: Path) -> None:
    manifests = render("--values", everything)
    text = one(manifests, "ConfigMap", "serving-table")["data"]["table.json"]
    assert json.loads(text) == {
        "schema": 1,
        "revision": 7,
        "models": {
            "image_classifier": {"stable": "1", "weights": {"1": 95.5, "2": 4.5}},
            "resnet50_cpp": {"stable": "3"},
        },
        "aliases": {"classifier": "image_classifier"},
    }
    taken = document.parse(json.loads(text))
    assert taken.revision == 7
    assert taken.models["resnet50_cpp"].weights == {"3": 100}


def test_the_table_is_mounted_so_that_its_changes_come_through(render: Render) -> None:
    manifests = render(WITH_TABLE)
    spec = one(manifests, "Deployment")["spec"]["template"]["spec"]
    [mount] = [m for m in spec["containers"][0]["volumeMounts"] if m["name"] == "table"]
    # With a subPath, the kubelet would never bring a change.
    assert mount == {"name": "table", "mountPath": "/etc/tidegate/routing", "readOnly": True}
    assert {"name": "table", "configMap": {"name": "tidegate-table"}} in spec["volumes"]
    assert environment_of_gateway(manifests)["TIDEGATE_ROUTING__TABLE"] == (
        f"{mount['mountPath']}/{one(manifests, 'ConfigMap', 'tidegate-table')['data'].popitem()[0]}"
    )


def test_without_models_there_is_no_table(render: Render) -> None:
    manifests = render()
    assert "tidegate-table" not in {m["metadata"]["name"] for m in manifests}
    spec = one(manifests, "Deployment")["spec"]["template"]["spec"]
    assert {volume["name"] for volume in spec["volumes"]} == {"tmp", "token"}
    assert "TIDEGATE_ROUTING__TABLE" not in environment_of_gateway(manifests)


def test_a_changed_table_restarts_no_pod(render: Render) -> None:
    def pods(*arguments: str) -> Manifest:
        template: Manifest = one(render(*arguments), "Deployment")["spec"]["template"]
        return template

    before = pods(WITH_TABLE)
    assert pods(WITH_TABLE.replace("66.6", "50").replace("33.4", "50")) == before
    assert pods(WITH_TABLE, "--set=routing.revision=9") == before


def test_the_revision_is_the_releases_unless_it_is_given(run_helm: Any) -> None:
    def revision(*arguments: str) -> int:
        done = run_helm(
            *("template", "tidegate", CHART, "--values", WITHOUT_OPERATOR),
            *(WITH_TABLE, "--is-upgrade", *arguments),
        )
        assert done.returncode == 0, done.stderr
        manifests = [*yaml.safe_load_all(done.stdout)]
        text = one(manifests, "ConfigMap", "tidegate-table")["data"]["table.json"]
        return int(json.loads(text)["revision"])

    # `helm template` knows of no release and renders the first revision of one.
    assert revision() == 1
    assert revision("--set=routing.revision=1760000000") == 1760000000


def test_other_settings_of_routing_stay(render: Render) -> None:
    environment = environment_of_gateway(
        render(WITH_TABLE, "--set=gateway.settings.routing.interval_s=5")
    )
    assert environment["TIDEGATE_ROUTING__INTERVAL_S"] == "5"
    assert environment["TIDEGATE_ROUTING__TABLE"] == "/etc/tidegate/routing/table.json"


# --- Reading ------------------------------------------------------------------------------------


def one(manifests: list[Manifest], kind: str, name: str | None = None) -> Manifest:
    [found] = [
        manifest
        for manifest in manifests
        if manifest["kind"] == kind and name in (None, manifest["metadata"]["name"])
    ]
    return found


def pod_specs(manifests: list[Manifest]) -> Iterator[Manifest]:
    for manifest in manifests:
        if manifest["kind"] == "Pod":
            yield manifest["spec"]
        elif manifest["kind"] in ("Deployment", "StatefulSet"):
            yield manifest["spec"]["template"]["spec"]


def environment_of_gateway(manifests: list[Manifest]) -> dict[str, str]:
    [container] = one(manifests, "Deployment")["spec"]["template"]["spec"]["containers"]
    return {
        variable["name"]: variable["value"]
        for variable in container["env"]
        if variable["name"].startswith("TIDEGATE_") and "value" in variable
    }


def token_sources(spec: Manifest) -> list[Manifest]:
    """What the volumes with a token of the API server hold."""
    projected = [volume["projected"] for volume in spec["volumes"] if "projected" in volume]
    return [source for volume in projected for source in volume["sources"]]


def objects(text: str) -> list[Manifest]:
    documents = text.partition("\n---\n")[2].split("\n---\n")
    return [yaml.safe_load(document) for document in documents]
