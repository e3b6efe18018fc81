// Command smoke takes a volume through its life with the AWS SDK for Go. The environment says
// where the server is.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"
)

const patience = 30 * time.Second

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	settings, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		return err
	}
	client := ec2.NewFromConfig(settings)
	made, err := client.CreateVolume(ctx, &ec2.CreateVolumeInput{
		AvailabilityZone: aws.String("local-1a"),
		Size:             aws.Int32(4),
		VolumeType:       types.VolumeTypeGp3,
	})
	if err != nil {
		return err
	}
	volumes := []string{*made.VolumeId}
	available := ec2.NewVolumeAvailableWaiter(client)
	err = available.Wait(ctx, &ec2.DescribeVolumesInput{VolumeIds: volumes}, patience)
	if err != nil {
		return err
	}
	_, err = client.CreateTags(ctx, &ec2.CreateTagsInput{
		Resources: volumes,
		Tags:      []types.Tag{{Key: aws.String("Name"), Value: aws.String("é & <b>")}},
	})
	if err != nil {
		return err
	}
	if _, err = client.ModifyVolume(ctx, &ec2.ModifyVolumeInput{
		VolumeId: made.VolumeId, Size: aws.Int32(8), Iops: aws.Int32(4000),
	}); err != nil {
		return err
	}
	if err = check(ctx, client); err != nil {
		return err
	}
	if err = protect(ctx, client, made.VolumeId); err != nil {
		return err
	}
	if err = look(ctx, client, volumes); err != nil {
		return err
	}
	if _, err = client.DeleteVolume(ctx, &ec2.DeleteVolumeInput{VolumeId: made.VolumeId}); err != nil {
		return err
	}
	deleted := ec2.NewVolumeDeletedWaiter(client)
	err = deleted.Wait(ctx, &ec2.DescribeVolumesInput{VolumeIds: volumes}, patience)
	if err != nil {
		return err
	}
	return refused(ctx, client, made.VolumeId)
}

// check reads the volume by its tag, page by page, and the snapshots with a number of zero, which
// the SDK sends and means none.
func check(ctx context.Context, client *ec2.Client) error {
	pages := ec2.NewDescribeVolumesPaginator(client, &ec2.DescribeVolumesInput{
		Filters: []types.Filter{{Name: aws.String("tag:Name"), Values: []string{"é & <b>"}}},
	})
	found := []types.Volume{}
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return err
		}
		found = append(found, page.Volumes...)
	}
	if len(found) != 1 || *found[0].Size != 8 || *found[0].Iops != 4000 {
		return fmt.Errorf("found %+v", found)
	}
	none := &ec2.DescribeSnapshotsInput{MaxResults: aws.Int32(0)}
	_, err := client.DescribeSnapshots(ctx, none)
	return err
}

// protect makes a snapshot and a copy: their replies have times, structures and lists.
func protect(ctx context.Context, client *ec2.Client, volume *string) error {
	snapshot, err := client.CreateSnapshot(ctx, &ec2.CreateSnapshotInput{VolumeId: volume})
	if err != nil {
		return err
	}
	id := []string{*snapshot.SnapshotId}
	locked, err := client.LockSnapshot(ctx, &ec2.LockSnapshotInput{
		SnapshotId:     snapshot.SnapshotId,
		LockMode:       types.LockModeGovernance,
		ExpirationDate: aws.Time(time.Now().Add(48 * time.Hour)),
	})
	if err != nil {
		return err
	}
	if locked.LockExpiresOn == nil || time.Until(*locked.LockExpiresOn) < 47*time.Hour {
		return fmt.Errorf("locked until %v", locked.LockExpiresOn)
	}
	fast, err := client.EnableFastSnapshotRestores(ctx, &ec2.EnableFastSnapshotRestoresInput{
		AvailabilityZones: []string{"local-1a"}, SourceSnapshotIds: id,
	})
	if err != nil || len(fast.Successful) != 1 {
		return fmt.Errorf("fast restore: %+v, %v", fast, err)
	}
	completed := ec2.NewSnapshotCompletedWaiter(client, func(o *ec2.SnapshotCompletedWaiterOptions) {
		o.MinDelay = 100 * time.Millisecond
	})
	err = completed.Wait(ctx, &ec2.DescribeSnapshotsInput{SnapshotIds: id}, patience)
	if err != nil {
		return err
	}
	copied, err := client.CopyVolumes(ctx, &ec2.CopyVolumesInput{SourceVolumeId: volume})
	if err != nil || len(copied.Volumes) != 1 {
		return fmt.Errorf("copied: %+v, %v", copied, err)
	}
	return nil
}

// look asks for everything else that is read: the SDK fails where a reply is not as it expects.
func look(ctx context.Context, client *ec2.Client, volumes []string) error {
	_, modified := client.DescribeVolumesModifications(ctx,
		&ec2.DescribeVolumesModificationsInput{VolumeIds: volumes})
	_, status := client.DescribeVolumeStatus(ctx,
		&ec2.DescribeVolumeStatusInput{VolumeIds: volumes})
	_, locked := client.DescribeLockedSnapshots(ctx, &ec2.DescribeLockedSnapshotsInput{})
	_, fast := client.DescribeFastSnapshotRestores(ctx, &ec2.DescribeFastSnapshotRestoresInput{})
	_, binned := client.ListVolumesInRecycleBin(ctx, &ec2.ListVolumesInRecycleBinInput{})
	_, instances := client.DescribeInstances(ctx, &ec2.DescribeInstancesInput{})
	_, kinds := client.DescribeInstanceTypes(ctx, &ec2.DescribeInstanceTypesInput{})
	_, zones := client.DescribeAvailabilityZones(ctx, &ec2.DescribeAvailabilityZonesInput{})
	_, regions := client.DescribeRegions(ctx, &ec2.DescribeRegionsInput{})
	_, account := client.DescribeAccountAttributes(ctx, &ec2.DescribeAccountAttributesInput{})
	_, encrypted := client.GetEbsEncryptionByDefault(ctx, &ec2.GetEbsEncryptionByDefaultInput{})
	_, tags := client.DescribeTags(ctx, &ec2.DescribeTagsInput{})
	return errors.Join(modified, status, locked, fast, binned, instances, kinds, zones, regions,
		account, encrypted, tags)
}

func refused(ctx context.Context, client *ec2.Client, volume *string) error {
	_, err := client.DeleteVolume(ctx, &ec2.DeleteVolumeInput{VolumeId: volume})
	var refusal smithy.APIError
	if !errors.As(err, &refusal) || refusal.ErrorCode() != "InvalidVolume.NotFound" {
		return fmt.Errorf("expected InvalidVolume.NotFound: %v", err)
	}
	return nil
}
