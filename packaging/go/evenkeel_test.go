package evenkeel

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
)

func program() string {
	if named := os.Getenv("EVENKEEL_PROGRAM"); named != "" {
		return named
	}
	return "evenkeel"
}

func TestServerServesVolumes(t *testing.T) {
	server := RunT(t)
	answer, err := http.Get(server.Endpoint + "/healthz")
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatal(answer, err)
	}
	create := exec.Command(program(), "volume", "create", "--size", "1", "--attach", "--wait")
	create.Env = server.Env
	printed, err := create.CombinedOutput()
	if err != nil || !strings.Contains(string(printed), "vol-") {
		t.Fatalf("%v: %s", err, printed)
	}
	if server.AccessKeyID == "" || server.SecretAccessKey == "" || server.NBD == "" {
		t.Fatalf("%+v", server)
	}
}

func TestServersAreApart(t *testing.T) {
	first, second := RunT(t), RunT(t, "--region", "eu-1")
	if first.Endpoint == second.Endpoint || second.Region != "eu-1" {
		t.Fatalf("%+v %+v", first, second)
	}
}

func TestTerminateLeavesNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	server, err := Run(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Terminate(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(server.folder); !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if _, err := http.Get(server.Endpoint + "/healthz"); err == nil {
		t.Fatal("the server runs still")
	}
}

func TestARefusedFlagIsAnErrorWithTheLog(t *testing.T) {
	_, err := Run(context.Background(), "--no-such-flag")
	if err == nil || !strings.Contains(err.Error(), "--no-such-flag") {
		t.Fatal(err)
	}
}
