// Command hyper is every Kubernetes server in one program, which one chosen by
// the name that it is called by: one binary links, loads and caches faster than
// five that share most of their code.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func command(name string) *cobra.Command {
	switch name {
	case "kube-apiserver":
		return apiserver.NewAPIServerCommand()
	case "kube-controller-manager":
		return controllermanager.NewControllerManagerCommand()
	case "kube-scheduler":
		return scheduler.NewSchedulerCommand()
	case "kube-proxy":
		return proxy.NewProxyCommand()
	case "kubelet":
		return kubelet.NewKubeletCommand(context.Background())
	}
	return nil
}

func main() {
	name := filepath.Base(os.Args[0])
	server := command(name)
	if server == nil {
		fmt.Fprintf(os.Stderr, "there is no server %q: call this program by a server's name\n", name)
		os.Exit(2)
	}
	os.Exit(cli.Run(server))
}
