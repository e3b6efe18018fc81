// Package evenkeel runs EBS on this machine for tests: a server on free ports, with its store in
// memory.
//
//	server := evenkeel.RunT(t)
//	client := ec2.New(ec2.Options{BaseEndpoint: &server.Endpoint, Region: server.Region,
//		Credentials: credentials.NewStaticCredentialsProvider(server.AccessKeyID, server.SecretAccessKey, "")})
//
// The program is the one of EVENKEEL_PROGRAM, or `evenkeel` on PATH.
package evenkeel

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// startMax is the longest start of a server.
const startMax = time.Minute

// memory is a file system in memory. Without it the folder of temporary files is used.
const memory = "/dev/shm"

var (
	api    = regexp.MustCompile(`API +(http\S+) +region (\S+)`)
	nbd    = regexp.MustCompile(`NBD +nbd://([^/\s]+)/`)
	export = regexp.MustCompile(`(?m)^export (\w+)='(.*)'$`)
)

// Server is a running server.
type Server struct {
	// Endpoint is the address of the API.
	Endpoint string
	// Region is the one that requests are signed for.
	Region string
	// NBD is the address of NBD, such as 127.0.0.1:10809.
	NBD string
	// AccessKeyID and SecretAccessKey are the server's key.
	AccessKeyID, SecretAccessKey string
	// Env has the variables for programs that use the server, as NAME=VALUE.
	Env []string

	folder string
	// end ends the process, and done is closed at its end.
	end  context.CancelFunc
	done chan struct{}
}

// Run starts a server with further flags of `evenkeel serve`, and returns when all its addresses
// answer. It ends with ctx, with Terminate, or with this process.
func Run(ctx context.Context, flags ...string) (*Server, error) {
	program := os.Getenv("EVENKEEL_PROGRAM")
	if program == "" {
		program = "evenkeel"
	}
	parent := ""
	if info, err := os.Stat(memory); err == nil && info.IsDir() {
		parent = memory
	}
	folder, err := os.MkdirTemp(parent, "evenkeel-testing-")
	if err != nil {
		return nil, err
	}
	data := filepath.Join(folder, "data")
	words := []string{"serve", "--listen", "127.0.0.1:0", "--nbd-listen", "127.0.0.1:0",
		"--calibrate", "never", "--oversell-space", "unlimited", "--data-dir", data}
	ctx, end := context.WithCancel(ctx)
	server := &Server{folder: folder, end: end, done: make(chan struct{})}
	var log bytes.Buffer
	command := exec.CommandContext(ctx, program, append(words, flags...)...)
	command.Dir, command.Env, command.Stderr = folder, environment(), &log
	// A killed test run leaves no server behind.
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdout, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		end()
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	late := time.AfterFunc(startMax, end)
	isReady := server.greeted(bufio.NewScanner(stdout))
	late.Stop()
	go func() {
		_ = command.Wait()
		close(server.done)
	}()
	if !isReady {
		_ = server.Terminate()
		return nil, fmt.Errorf("the server did not start: %s", log.String())
	}
	if err := server.readKeys(program, data); err != nil {
		return nil, errors.Join(err, server.Terminate())
	}
	return server, nil
}

// RunT starts a server for a test, and ends it after the test.
func RunT(t testing.TB, flags ...string) *Server {
	t.Helper()
	server, err := Run(context.Background(), flags...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Terminate(); err != nil {
			t.Error(err)
		}
	})
	return server
}

// Terminate ends the server, and removes its files.
func (s *Server) Terminate() error {
	s.end()
	<-s.done
	return os.RemoveAll(s.folder)
}

// URI returns the address of a volume that is attached to this machine, for NBD clients.
func (s *Server) URI(volume string) string {
	return "nbd://" + s.NBD + "/" + volume
}

// greeted reads the server's addresses, and returns whether they were printed.
func (s *Server) greeted(lines *bufio.Scanner) bool {
	for lines.Scan() {
		line := lines.Text()
		if found := api.FindStringSubmatch(line); found != nil {
			s.Endpoint, s.Region = found[1], found[2]
		}
		if found := nbd.FindStringSubmatch(line); found != nil {
			s.NBD = found[1]
		}
		if strings.Contains(line, "stops it") {
			return s.Endpoint != ""
		}
	}
	return false
}

func (s *Server) readKeys(program, data string) error {
	command := exec.Command(program, "env", "--data-dir", data)
	command.Dir, command.Env = s.folder, environment()
	printed, err := command.Output()
	if err != nil {
		return fmt.Errorf("%s env: %w", program, err)
	}
	s.Env = environment()
	for _, found := range export.FindAllStringSubmatch(string(printed), -1) {
		s.Env = append(s.Env, found[1]+"="+found[2])
		switch found[1] {
		case "AWS_ACCESS_KEY_ID":
			s.AccessKeyID = found[2]
		case "AWS_SECRET_ACCESS_KEY":
			s.SecretAccessKey = found[2]
		}
	}
	return nil
}

// environment returns the variables of this process without settings of AWS and of Evenkeel.
func environment() []string {
	var kept []string
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "AWS_") && !strings.HasPrefix(variable, "EVENKEEL_") {
			kept = append(kept, variable)
		}
	}
	return kept
}
