module evenkeel.dev/testing

go 1.21
