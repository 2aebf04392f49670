package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/schema"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// manifests are what the files describe, as the types of the Kubernetes API.
type manifests struct {
	secret     corev1.Secret
	service    corev1.Service
	nodes      appsv1.StatefulSet
	disruption policyv1.PodDisruptionBudget
	network    networkingv1.NetworkPolicy
	worker     appsv1.Deployment
}

// decode refuses a field that the API does not know, and a value of another type.
func decode(files ...string) (*manifests, error) {
	all := &manifests{}
	targets := map[string]any{
		"v1 Secret": &all.secret, "v1 Service": &all.service, "apps/v1 StatefulSet": &all.nodes,
		"policy/v1 PodDisruptionBudget": &all.disruption, "networking.k8s.io/v1 NetworkPolicy": &all.network,
		"apps/v1 Deployment": &all.worker,
	}
	for _, file := range files {
		for _, document := range strings.Split(file, "\n---\n") {
			var is struct{ APIVersion, Kind string }
			if err := yaml.Unmarshal([]byte(document), &is); err != nil {
				return nil, err
			}
			kind := is.APIVersion + " " + is.Kind
			target := targets[kind]
			if target == nil {
				return nil, fmt.Errorf("%s is unknown here, or stands twice", kind)
			}
			delete(targets, kind)
			text, err := yaml.YAMLToJSONStrict([]byte(document))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", kind, err)
			}
			unknown, err := json.UnmarshalStrict(text, target) // as the API server does: the case of a name counts
			if err := errors.Join(append(unknown, err)...); err != nil {
				return nil, fmt.Errorf("%s: %w", kind, err)
			}
		}
	}
	if len(targets) > 0 {
		return nil, fmt.Errorf("missing: %v", targets)
	}
	return all, nil
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(text)
}

func load(t *testing.T) *manifests {
	t.Helper()
	m, err := decode(read(t, "redis.yaml"), read(t, "worker.yaml"))
	require.NoError(t, err)
	return m
}

func TestAMistakeInAManifestIsFound(t *testing.T) {
	redis, worker := read(t, "redis.yaml"), read(t, "worker.yaml")
	for right, wrong := range map[string]string{
		"serviceName: locks-redis":         "servicename: locks-redis",
		"replicas: 3":                      `replicas: "3"`,
		"topologyKey: kubernetes":          "topologykey: kubernetes",
		"maxUnavailable: 1 #":              "maxUnavailables: 1 #",
		"policyTypes: [Ingress]":           "policyTypes: Ingress",
		"  podManagementPolicy":            "   podManagementPolicy",
		"publishNotReadyAddresses: true":   "publishNotReadyAddresses: yes please",
		"kind: PodDisruptionBudget":        "kind: PodDisruptionBudgets",
		"initialDelaySeconds: 45":          "initialDelaySeconds: 45s",
		"            allowPrivilegeEscal":  "            allowPrivilegesEscal",
		"      terminationGracePeriodSeco": "    terminationGracePeriodSeco",
	} {
		require.Contains(t, redis, right)
		_, err := decode(strings.Replace(redis, right, wrong, 1), worker)
		assert.Error(t, err, wrong)
	}
}

// With the lines for TLS, the servers serve nothing else, and everyone has the files that the arguments name.
func TestTheLinesForTLSFitTheManifests(t *testing.T) {
	with := func(file string) string { return strings.ReplaceAll(read(t, file), "#TLS ", "") }
	m, err := decode(with("redis.yaml"), with("worker.yaml"))
	require.NoError(t, err)
	conf := read(t, "../../docs/redis.conf")
	nodes, worker := m.nodes.Spec.Template.Spec, m.worker.Spec.Template.Spec
	args := nodes.Containers[0].Args
	for i, arg := range args {
		if !strings.Contains(arg, "tls") || !strings.HasPrefix(arg, "--") {
			continue
		}
		assert.Contains(t, conf, "\n"+strings.TrimPrefix(arg, "--")+" ")
		if path, ok := strings.CutPrefix(args[i+1], "/etc/tls/"); ok {
			assert.Contains(t, []string{"tls.crt", "tls.key", "ca.crt"}, path)
		}
	}
	assert.Contains(t, strings.Join(args, " "), "--port 0 --tls-port "+strconv.Itoa(int(m.service.Spec.Ports[0].Port))+" ")
	assert.Equal(t, "/etc/tls/ca.crt", m.flags()["ca"])
	for _, pod := range []corev1.PodSpec{nodes, worker} {
		assert.Equal(t, corev1.VolumeMount{Name: "tls", MountPath: "/etc/tls", ReadOnly: true}, pod.Containers[0].VolumeMounts[1])
		assert.Equal(t, "tls", pod.Volumes[1].Name)
		assert.Equal(t, "locks-redis-tls", pod.Volumes[1].Secret.SecretName)
	}
	assert.Equal(t, []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}}, worker.Volumes[1].Secret.Items)
}

// flags are the arguments of the worker by name.
func (m *manifests) flags() map[string]string {
	all := map[string]string{}
	for _, arg := range m.worker.Spec.Template.Spec.Containers[0].Args {
		name, value, _ := strings.Cut(strings.TrimPrefix(arg, "-"), "=")
		all[name] = value
	}
	return all
}

func TestTheWorkerKnowsThePodsOfTheNodesAndTheirSecret(t *testing.T) {
	m := load(t)
	var addrs []string
	for i := range *m.nodes.Spec.Replicas {
		host := fmt.Sprintf("%s-%d.%s", m.nodes.Name, i, m.service.Name)
		addrs = append(addrs, net.JoinHostPort(host, strconv.Itoa(int(m.service.Spec.Ports[0].Port))))
	}
	assert.Equal(t, strings.Join(addrs, ","), m.flags()["nodes"])
	assert.Equal(t, m.service.Name, m.nodes.Spec.ServiceName)
	assert.Equal(t, corev1.ClusterIPNone, m.service.Spec.ClusterIP)
	nodes, worker := m.nodes.Spec.Template, m.worker.Spec.Template
	for what, selector := range map[string]map[string]string{
		"StatefulSet": m.nodes.Spec.Selector.MatchLabels, "Service": m.service.Spec.Selector,
		"PodDisruptionBudget": m.disruption.Spec.Selector.MatchLabels, "NetworkPolicy": m.network.Spec.PodSelector.MatchLabels,
		"affinity": nodes.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].LabelSelector.MatchLabels,
		"spread":   nodes.Spec.TopologySpreadConstraints[0].LabelSelector.MatchLabels,
	} {
		assert.Equal(t, nodes.Labels, selector, what)
	}
	assert.Subset(t, worker.Labels, m.worker.Spec.Selector.MatchLabels)
	assert.Subset(t, worker.Labels, m.network.Spec.Ingress[0].From[0].PodSelector.MatchLabels)
	container := nodes.Spec.Containers[0]
	assert.Equal(t, m.service.Spec.Ports[0].Port, container.Ports[0].ContainerPort)
	assert.Equal(t, int(m.service.Spec.Ports[0].Port), m.network.Spec.Ingress[0].Ports[0].Port.IntValue())

	for _, template := range []corev1.PodTemplateSpec{nodes, worker} {
		volume, mount := template.Spec.Volumes[0], template.Spec.Containers[0].VolumeMounts[0]
		assert.Equal(t, volume.Name, mount.Name)
		assert.Equal(t, m.secret.Name, volume.Secret.SecretName)
		assert.Contains(t, m.secret.StringData, volume.Secret.Items[0].Key)
		path := mount.MountPath + "/" + volume.Secret.Items[0].Path
		arguments := template.Spec.Containers[0].Args
		assert.Contains(t, strings.ReplaceAll(strings.Join(arguments, " "), "=", " "), " "+path)
	}
	assert.Contains(t, m.secret.StringData["users.acl"], ">"+m.secret.StringData["password"]+" ")
}

// The rights stand in one place, which tests on real servers check.
func TestTheRightsAreThoseOfTheReference(t *testing.T) {
	command := regexp.MustCompile("(?s)redis-cli ACL SETUSER (quorumlock .*?)\n```").FindStringSubmatch(read(t, "../../docs/reference.md"))
	require.NotNil(t, command)
	rights := strings.Join(strings.Fields(strings.NewReplacer("'", "", "\\\n", "").Replace(command[1])), " ")
	assert.Contains(t, strings.Split(load(t).secret.StringData["users.acl"], "\n"), "user "+rights)
}

// Types do not catch a probe with the name of another port, or a grace period that ends before Close.
func TestProbesAndTimesFitTheProgram(t *testing.T) {
	m := load(t)
	pod := m.worker.Spec.Template.Spec
	container := pod.Containers[0]
	assert.Greater(t, time.Duration(*pod.TerminationGracePeriodSeconds)*time.Second, closeWithin+5*time.Second)
	for path, probe := range map[string]*corev1.Probe{"/startup": container.StartupProbe, "/ready": container.ReadinessProbe, "/live": container.LivenessProbe} {
		assert.Equal(t, path, probe.HTTPGet.Path)
		assert.Equal(t, container.Ports[0].Name, probe.HTTPGet.Port.String())
	}
	assert.Greater(t, container.StartupProbe.PeriodSeconds*container.StartupProbe.FailureThreshold, int32(120), "New waits for two minutes")
	assert.Equal(t, fmt.Sprintf(":%d", container.Ports[0].ContainerPort), m.flags()["listen"])
	assert.Equal(t, "$("+container.Env[0].Name+")", m.flags()["holder"])
	assert.Equal(t, "metadata.name", container.Env[0].ValueFrom.FieldRef.FieldPath)

	guard, err := time.ParseDuration(m.flags()["guard"])
	require.NoError(t, err)
	node := m.nodes.Spec.Template.Spec.Containers[0]
	ready := time.Duration(node.ReadinessProbe.InitialDelaySeconds) * time.Second
	assert.Greater(t, ready, guard+guard/100+10*time.Second, "the next node is restarted when this one votes")
	assert.Equal(t, 1, m.disruption.Spec.MaxUnavailable.IntValue())
	for _, probe := range []*corev1.Probe{node.ReadinessProbe, node.LivenessProbe} {
		assert.Equal(t, node.Ports[0].Name, probe.TCPSocket.Port.String())
	}
	assert.Equal(t, m.service.Spec.PublishNotReadyAddresses, ready > 0, "no one would meet the node, and its quarantine would not begin")
}

// compose returns the images and ports of a compose file. It refuses a file that does not fit the schema
// of the specification, and a port that other hosts can reach.
func compose(text string) (images, ports []string, err error) {
	var file map[string]any
	if err := yaml.UnmarshalStrict([]byte(text), &file); err != nil {
		return nil, nil, err
	}
	if err := schema.Validate(file); err != nil {
		return nil, nil, err
	}
	var typed struct {
		Services map[string]struct {
			Image string
			Ports []string
		}
	}
	if err := yaml.Unmarshal([]byte(text), &typed); err != nil {
		return nil, nil, err
	}
	for name, service := range typed.Services {
		images, ports = append(images, service.Image), append(ports, service.Ports...)
		for _, port := range service.Ports {
			if !strings.HasPrefix(port, "127.0.0.1:") {
				return nil, nil, fmt.Errorf("%s: port %s is open to the network", name, port)
			}
		}
	}
	return images, ports, nil
}

func TestTheComposeFileHasThreeNodesOnLoopback(t *testing.T) {
	text := read(t, "compose.yaml")
	images, ports, err := compose(text)
	require.NoError(t, err)
	require.Len(t, ports, 3)
	var addrs []string
	for i := range ports {
		addrs = append(addrs, "127.0.0.1:"+strconv.Itoa(17001+i))
		assert.Contains(t, ports, addrs[i]+":6379")
	}
	assert.Contains(t, text, "-nodes "+strings.Join(addrs, ","), "the command in its comment")
	assert.Contains(t, read(t, "main.go"), "-nodes "+strings.Join(addrs, ","))
	image, version, _ := strings.Cut(load(t).nodes.Spec.Template.Spec.Containers[0].Image, ":")
	assert.Equal(t, []string{image + ":" + version, image + ":" + version, image + ":" + version}, images)
	assert.Contains(t, read(t, "../../docs/testing.md"), "| Redis "+version+" |", "a version that is tested")

	for right, wrong := range map[string]string{
		"image: redis": "images: redis", "127.0.0.1:17001:": "17001:", "services:": "service:", `ports: ["127.0.0.1:17002:6379"]`: "ports: 17002",
	} {
		require.Contains(t, text, right)
		_, _, err := compose(strings.Replace(text, right, wrong, 1))
		assert.Error(t, err, wrong)
	}
}
